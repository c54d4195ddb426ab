"""A model directory on its way to the cluster: small ones within the request that needs them, large ones in chunks."""

from __future__ import annotations

from determined.common._chunks import content, plan_of
from determined.common.api._async import _io
from determined.common.api._url import api_path
from determined.common.experimental._async._wire import new_key
from determined.errors import InvalidContextException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from determined.common.api._async._session import AsyncSession
    from determined.common.context import Folder

#: Chunks that are sent at a time: each is in memory meanwhile.
_AT_ONCE = 3
#: A master that starts again is waited for, some 20 s.
_MAX_TRIES = 14
_TIMEOUT_S = 300.0


async def code_of(
    session: AsyncSession,
    folder: Folder,
    field: str = "modelDefinition",
    report: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """The fields of a request that say its files. Those of a large folder are uploaded before, what is lacking of them.

    Args:
        session: Who uploads it, and sends the request.
        folder: The files.
        field: Where small ones go.
        report: Gets what is being done, and bytes: done and in all.

    Raises:
        InvalidContextException: A file can't be read or changes meanwhile, or all are larger than the cluster takes.
        APIException: The master refused, or could not be reached; what was sent is not sent again by a further try.
    """
    if not folder.is_large:
        return {field: await _io.run(folder.files)}
    if not folder.context_id:
        folder.context_id = await _upload(session, folder, report)
    return {"context": folder.context_id}


async def _upload(session: AsyncSession, folder: Folder, report: Callable[[str, int, int], None] | None) -> str:
    total = sum(folder.sizes.values())
    path = api_path("undeterred", "contexts")

    async def ask(chunks: Sequence[str]) -> dict[str, Any]:
        body = {"chunks": list(chunks)}
        answer = await session.post(f"{path}/missing", body, idempotency_key=new_key(), timeout_s=_TIMEOUT_S)
        return answer.json()

    _check_size(folder, total, int((await ask(()))["contextLimit"]))  # before the folder is read

    def hashed(size: int) -> None:
        if report is not None:
            report("hashing", size, total)

    plan = await _io.run(plan_of, folder.entries, hashed)
    answer = await ask(list(plan.chunks))
    _check_size(folder, plan.total, int(answer["contextLimit"]))  # it may have grown
    missing: list[str] = answer["missing"]
    sizes = {digest: sum(piece.size for piece in plan.chunks[digest]) for digest in missing}
    done, lacking = 0, sum(sizes.values())

    async def send(digest: str) -> None:
        nonlocal done
        body = await _io.run(content, digest, plan.chunks[digest])
        await session.put(
            f"{path}/chunks/{digest}",
            body=body,
            headers={"Content-Type": "application/octet-stream"},
            timeout_s=_TIMEOUT_S,
            max_tries=_MAX_TRIES,
        )
        done += sizes[digest]
        if report is not None:
            report("sending", done, lacking)

    await _io.each(send, missing, _AT_ONCE)
    # with a key it is sent again where there was no answer; a second time changes nothing
    made = await session.post(path, plan.manifest(), idempotency_key=new_key(), timeout_s=_TIMEOUT_S)
    return str(made.json()["id"])


def _check_size(folder: Folder, total: int, limit: int) -> None:
    if total <= limit:
        return
    largest = sorted(folder.sizes.items(), key=lambda item: -item[1])[:5]
    raise InvalidContextException(
        f"the folder has {total / 2**20:.1f} MiB, and this cluster takes {limit / 2**20:.0f} MiB "
        f"(context_limit_mib). The largest files: "
        f"{', '.join(f'{name} ({size / 2**20:.1f} MiB)' for name, size in largest)}. "
        "List what the training does not need in a file named .detignore, or load it from elsewhere"
    )
