export FROM_HOOK="the hook ran"
