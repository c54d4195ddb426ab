"""Where the pages do what `det` does: every command that changes something, with its page, its button and its route.

`tests/unit/web/test_actions.py` holds that: a new command fails it until it has a row here or is among `READS`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    """One command's place in the pages.

    Attributes:
        page: Where that is, for people.
        button: What the button is called, or the field of the form that it opens.
        module: The module below `web/static/app` that has it.
        route: The method and the path below `/api/v1/`, with `{}` for what varies.
        caller: The module that sends it, if that is another one.
    """

    page: str
    button: str
    module: str
    route: str
    caller: str = ""


_EXPERIMENT, _MORE = "an experiment, several in a project", "an experiment, menu ⋯"
_EDIT = "an experiment, **Edit**"
_STEER = "POST undeterred/experiments/{}/search/steer"
_TASK, _LIMITS = "Tasks, a task", "Tasks, **Limits**"
_PLACE = "Queue, **Change**"
_POOLS, _USERS, _GROUPS, _ROLES = "Admin, Pools", "Admin, Users", "Admin, Groups", "Admin, Roles; a workspace, Members"
_EDIT_USER = "Admin, Users, **Edit**"

#: Command to its place in the pages, or to the reason why it belongs to a terminal.
ACTIONS: dict[str, Action | str] = {
    # experiments
    **{
        f"experiment {word}": Action(_EXPERIMENT, word.capitalize(), "experiments.js", f"POST experiments/{{}}/{word}")
        for word in ("activate", "pause", "cancel", "kill", "archive", "unarchive")
    },
    "experiment bulk": Action(
        "a project, several chosen", "chosen", "pages/project.js", "POST experiments/{}/pause", "experiments.js"
    ),
    "experiment create": Action("New experiment", "Start it", "pages/launch.js", "POST experiments"),
    "experiment continue": Action(
        "an experiment that has ended", "Continue", "experimentdialogs.js", "POST experiments/continue"
    ),
    "experiment fork": Action(
        "an experiment; a decision of its search", "Fork", "experimentdialogs.js", "POST experiments/{}/fork"
    ),
    "experiment edit": Action(
        "an experiment that runs", "Change it", "experimentdialogs.js", "POST experiments/{}/search/amend"
    ),
    "experiment budget set": Action(
        "an experiment", "Change the budget", "budget.js", "PATCH undeterred/experiments/{}/budget"
    ),
    "experiment set priority": Action(_EDIT, "Priority", "experimentdialogs.js", "PATCH experiments/{}"),
    "experiment set weight": Action(_EDIT, "Weight", "experimentdialogs.js", "PATCH experiments/{}"),
    "experiment set max-slots": Action(_EDIT, "Slots at most", "experimentdialogs.js", "PATCH experiments/{}"),
    "experiment set name": Action(_MORE, "Name, labels, description", "experimentmore.js", "PATCH experiments/{}"),
    "experiment set description": Action(
        _MORE, "Name, labels, description", "experimentmore.js", "PATCH experiments/{}"
    ),
    "experiment label add": Action(_MORE, "Name, labels, description", "experimentmore.js", "PATCH experiments/{}"),
    "experiment label remove": Action(_MORE, "Name, labels, description", "experimentmore.js", "PATCH experiments/{}"),
    "experiment set log-retention": Action(
        _MORE, "Log retention", "experimentmore.js", "PUT experiments/{}/retain_logs"
    ),
    "experiment set gc-policy": Action(_MORE, "Checkpoints to keep", "experimentmore.js", "PATCH experiments/{}"),
    "experiment gc": Action(
        f"{_MORE}, **Checkpoints to keep**",
        "Remove them now",
        "experimentmore.js",
        "POST undeterred/experiments/{}/gc",
    ),
    "experiment move": Action(_MORE, "Move to a project", "experimentmore.js", "POST experiments/{}/move"),
    "experiment delete-tb-files": Action(
        _MORE, "Remove TensorBoard files", "experimentmore.js", "DELETE experiments/{}/tensorboard-files"
    ),
    "experiment delete": Action(_MORE, "Delete", "experimentmore.js", "DELETE experiments/{}"),
    "trial kill": Action("a trial", "Kill", "pages/trial.js", "POST trials/{}/kill"),
    "trial add": Action("an experiment, Trials", "Add a trial", "steer.js", _STEER),
    "trial stop": Action("a trial, **Steer**", "stop it", "steer.js", _STEER),
    "trial promote": Action("a trial, **Steer**", "promote it", "steer.js", _STEER),
    "trial boost": Action("a trial, **Steer**", "boost it", "steer.js", _STEER),
    "trial set log-retention": Action("a trial", "Log retention", "pages/trial.js", "PUT trials/{}/retain_logs"),
    "checkpoint delete": Action("Checkpoints", "Delete", "checkpoints.js", "DELETE checkpoints"),
    "checkpoint rm": Action("Checkpoints, **Files**", "Remove ", "checkpoints.js", "POST checkpoints/rm"),
    # what is shared
    "model create": Action("Models", "New model", "pages/models.js", "POST models"),
    "model delete": Action("a model", "Delete", "pages/models.js", "DELETE models/{}"),
    "model move": Action("a model", "Move", "pages/models.js", "POST models/{}/move"),
    "model register-version": Action("Checkpoints", "Register", "checkpoints.js", "POST models/{}/versions"),
    "workspace create": Action("Workspaces", "New workspace", "pages/workspaces.js", "POST workspaces"),
    "campaign create": Action("Campaigns", "New campaign", "pages/campaigns.js", "POST undeterred/campaigns"),
    "campaign edit": Action("a campaign", "Edit", "pages/campaigns.js", "PUT undeterred/campaigns/{}"),
    "campaign run": Action("a campaign", "Run it now", "pages/campaigns.js", "POST undeterred/campaigns/{}/runs"),
    "campaign backfill": Action(
        "a campaign with a schedule", "Back-fill", "pages/campaigns.js", "POST undeterred/campaigns/{}/backfill"
    ),
    "campaign pause": Action(
        "a campaign with a schedule; a run", "Pause", "pages/campaigns.js", "POST undeterred/campaigns/{}/pause"
    ),
    "campaign activate": Action(
        "a campaign with a schedule; a run", "Activate", "pages/campaigns.js", "POST undeterred/campaigns/{}/activate"
    ),
    "campaign cancel": Action(
        "a run of a campaign", "Cancel", "pages/campaigns.js", "POST undeterred/campaigns/{}/runs/{}/cancel"
    ),
    "campaign kill": Action(
        "a run of a campaign", "Kill", "pages/campaigns.js", "POST undeterred/campaigns/{}/runs/{}/kill"
    ),
    "campaign delete": Action("a campaign", "Delete", "pages/campaigns.js", "DELETE undeterred/campaigns/{}"),
    "gate approve": Action("an experiment", "Approve", "gates.js", "POST undeterred/gates/{}/approve"),
    "gate deny": Action("an experiment", "Deny", "gates.js", "POST undeterred/gates/{}/deny"),
    "workspace budget set": Action(
        "a workspace, Budget", "Change the budget", "budget.js", "PATCH undeterred/workspaces/{}/budget"
    ),
    "token budget set": Action(
        "your account; Admin, Access tokens", "Budget", "tokens.js", "PATCH undeterred/tokens/{}/budget"
    ),
    "workspace edit": Action("a workspace", "Settings", "pages/workspaces.js", "PATCH workspaces/{}"),
    "workspace delete": Action("a workspace", "Delete", "pages/workspaces.js", "DELETE workspaces/{}"),
    "workspace archive": Action("Workspaces", "Archive", "pages/workspaces.js", "POST workspaces/{}/archive"),
    "workspace unarchive": Action("Workspaces", "Unarchive", "pages/workspaces.js", "POST workspaces/{}/unarchive"),
    "workspace bindings set": "namespaces are those of Kubernetes, of which a cluster has none: it is refused",
    "workspace bindings delete": "namespaces are those of Kubernetes, of which a cluster has none: it is refused",
    "workspace resource-quota set": "quotas are those of Kubernetes, of which a cluster has none: it is refused",
    "project create": Action("a workspace", "New project", "pages/workspaces.js", "POST workspaces/{}/projects"),
    "project edit": Action("a workspace", "Edit", "pages/workspaces.js", "PATCH projects/{}"),
    "project delete": Action("a workspace", "Delete", "pages/workspaces.js", "DELETE projects/{}"),
    "project archive": Action("a workspace", "Archive", "pages/workspaces.js", "POST projects/{}/archive"),
    "project unarchive": Action("a workspace", "Unarchive", "pages/workspaces.js", "POST projects/{}/unarchive"),
    "template create": Action("Templates", "New template", "pages/templates.js", "PUT templates/{}"),
    "template set": Action("Templates", "Edit", "pages/templates.js", "PUT templates/{}"),
    "template set-value config": Action("Templates", "Edit", "pages/templates.js", "PUT templates/{}"),
    "template remove": Action("Templates", "Delete", "pages/templates.js", "DELETE templates/{}"),
    "config-policies set": Action(
        "a workspace, Policies; Admin, Policies",
        "Set rules",
        "pages/workspaces.js",
        "PUT config-policies/global/EXPERIMENT",
    ),
    "config-policies delete": Action(
        "a workspace, Policies; Admin, Policies",
        "Remove",
        "pages/workspaces.js",
        "DELETE config-policies/global/EXPERIMENT",
    ),
    "webhook create": Action("Webhooks", "New webhook", "pages/webhooks.js", "POST webhooks"),
    "webhook edit": Action("Webhooks", "Edit", "pages/webhooks.js", "PATCH webhooks/{}"),
    "webhook delete": Action("Webhooks", "Delete", "pages/webhooks.js", "DELETE webhooks/{}"),
    "webhook test": Action("Webhooks", "Test", "pages/webhooks.js", "POST webhooks/{}/test"),
    # tasks
    "command run": Action("Tasks, Home", "Command", "tasklist.js", "POST commands"),
    "notebook start": Action("Tasks, Home", "JupyterLab", "tasklist.js", "POST notebooks"),
    "shell start": Action("Tasks, Home", "Shell", "tasklist.js", "POST shells"),
    "tensorboard start": Action("an experiment", "TensorBoard", "pages/experiment.js", "POST tensorboards"),
    "task create": Action("Tasks", "Task", "tasklist.js", "POST generic-tasks"),
    "task fork": Action("Tasks, a task", "Run again", "tasklist.js", "POST generic-tasks"),
    "task pause": Action(_TASK, "Pause", "tasklist.js", "POST tasks/{}/pause"),
    "task unpause": Action(_TASK, "Unpause", "tasklist.js", "POST tasks/{}/unpause"),
    **{
        f"{kind} kill": Action(_TASK, "Kill", "tasklist.js", f"POST {kind}s/{{}}/kill")
        for kind in ("command", "notebook", "shell", "tensorboard", "task")
    },
    **{
        f"{kind} set priority": Action(_LIMITS, "Priority", "tasklist.js", f"POST {kind}s/{{}}/set_priority")
        for kind in ("command", "notebook", "shell", "tensorboard")
    },
    **{
        f"{kind} set lifetime": Action(
            _LIMITS, "Ends after so long on its slots", "tasklist.js", "PATCH undeterred/tasks/{}/limits"
        )
        for kind in ("command", "notebook", "shell", "tensorboard", "task")
    },
    **{
        f"{kind} set idle-timeout": Action(
            _LIMITS, "Ends unused after", "tasklist.js", "PATCH undeterred/tasks/{}/limits"
        )
        for kind in ("notebook", "tensorboard", "task")
    },
    "task cleanup-logs": Action("Admin, Logs", "Remove expired logs now", "access.js", "POST cleanup_logs"),
    "shell open": "it opens a connection of this terminal; in the pages **Open** shows a terminal in the browser",
    # the cluster
    "job update": Action(_PLACE, "ahead of another job", "pages/queue.js", "POST job-queues"),
    "job update-batch": Action("Queue, several chosen", "Set", "pages/queue.js", "POST job-queues"),
    "agent disable": Action("Cluster", "Disable", "pages/cluster.js", "POST agents/{}/disable"),
    "agent enable": Action("Cluster", "Enable", "pages/cluster.js", "POST agents/{}/enable"),
    "agent remove": Action("Cluster", "Remove", "agents.js", "DELETE undeterred/agents/{}"),
    "agent join-token create": Action("Cluster", "New join token", "agents.js", "POST undeterred/agent-join-tokens"),
    "agent join-token revoke": Action("Cluster", "Revoke", "agents.js", "DELETE undeterred/agent-join-tokens/{}"),
    "agent run": "it is the agent itself, and runs on its host",
    "slot disable": Action("Cluster, **Slots**", "Disable", "agents.js", "POST agents/{}/slots/{}/disable"),
    "slot enable": Action("Cluster, **Slots**", "Enable", "agents.js", "POST agents/{}/slots/{}/enable"),
    "resource-pool create": Action(_POOLS, "New pool", "pools.js", "POST undeterred/resource-pools"),
    "resource-pool remove": Action(_POOLS, "Remove", "pools.js", "DELETE undeterred/resource-pools/{}"),
    "resource-pool set-default": Action(_POOLS, "Default for slots", "pools.js", "PATCH undeterred/resource-pools/{}"),
    "resource-pool set-description": Action(_POOLS, "Describe", "pools.js", "PATCH undeterred/resource-pools/{}"),
    "resource-pool settings": Action(_POOLS, "Settings", "pools.js", "PATCH undeterred/resource-pools/{}/settings"),
    "resource-pool access restrict": Action(_POOLS, "Restrict", "access.js", "PUT resource-pool-access/{}"),
    "resource-pool access open": Action(_POOLS, "Open", "access.js", "PUT resource-pool-access/{}"),
    "resource-pool access grant": Action(_POOLS, "Grant", "access.js", "POST resource-pool-access/{}/grant"),
    "resource-pool access revoke": Action(_POOLS, "Revoke", "access.js", "POST resource-pool-access/{}/revoke"),
    "resource-pool bindings add": Action(
        _POOLS, "Bind", "access.js", "POST resource-pools/{}/workspace-bindings"
    ),
    "resource-pool bindings remove": Action(
        _POOLS, "Unbind", "access.js", "DELETE resource-pools/{}/workspace-bindings"
    ),
    "resource-pool bindings replace": Action(
        f"{_POOLS}: **Bind**, then ✕ at the others", "Bind", "access.js", "POST resource-pools/{}/workspace-bindings"
    ),
    "master config set": Action("Admin, Logs", "Log of the API", "access.js", "PATCH master/config"),
    "master cluster-message set": Action("Admin, Message", "Say it", "pages/admin.js", "PUT master/cluster_message"),
    "master cluster-message clear": Action(
        "Admin, Message", "Take it back", "pages/admin.js", "DELETE master/cluster_message"
    ),
    # users
    "user create": Action(_USERS, "New user", "pages/admin.js", "POST users"),
    "user activate": Action(_USERS, "Activate", "pages/admin.js", "PATCH users/{}"),
    "user deactivate": Action(_USERS, "Deactivate", "pages/admin.js", "PATCH users/{}"),
    "user change-password": Action(
        "your account; Admin, Users", "Change it", "pages/account.js", "PATCH users/{}"
    ),
    "user edit": Action(_USERS, "Edit", "pages/admin.js", "PATCH users/{}"),
    "user rename": Action(_EDIT_USER, "Name to log in with", "pages/admin.js", "PATCH users/{}"),
    "user link-with-agent-user": Action(
        _EDIT_USER, "Tasks run on the hosts as user", "pages/admin.js", "PATCH users/{}"
    ),
    "auth login": "logs `det` in; the login page has a button for it",
    "user login": Action("Login", "Log in", "pages/login.js", "POST auth/login", "session.js"),
    "user logout": Action("your account", "Log out", "pages/account.js", "POST auth/logout", "session.js"),
    "user-group create": Action(_GROUPS, "New group", "pages/admin.js", "POST groups"),
    "user-group delete": Action(_GROUPS, "Delete", "pages/admin.js", "DELETE groups/{}"),
    "user-group change-name": Action(_GROUPS, "Rename", "access.js", "PUT groups/{}"),
    "user-group add-user": Action(_GROUPS, "Add", "access.js", "PUT groups/{}"),
    "user-group remove-user": Action(_GROUPS, "Remove", "access.js", "PUT groups/{}"),
    "rbac assign-role": Action(_ROLES, "Give it", "access.js", "POST roles/add-assignments"),
    "rbac unassign-role": Action(_ROLES, "Take it back", "access.js", "POST roles/remove-assignments"),
    "token create": Action("your account", "New token", "tokens.js", "POST tokens"),
    "token edit": Action("your account; Admin, Access tokens", "Describe", "tokens.js", "PATCH tokens/{}"),
    "token revoke": Action("your account; Admin, Access tokens", "Revoke", "pages/account.js", "PATCH tokens/{}"),
    "token login": "it makes this terminal use a token; a browser logs in with a password",
    # of this machine
    **dict.fromkeys(
        ("up", "down", "deploy up", "deploy down", "deploy reset-password", "deploy local cluster-up",
         "deploy local cluster-down", "deploy local reset-password", "deploy local master-up",
         "deploy local master-down", "deploy local agent-up", "deploy local agent-down"),
        "it is about the processes of a cluster on this machine",
    ),
    "import run": "it takes the address and the password of another database, which belong into an operator's terminal",
    **dict.fromkeys(
        ("import mlflow", "import tensorboard", "import wandb"), "it reads folders of the machine that `det` runs on"
    ),
    "import cancel": "imports are watched where they were started: in an operator's terminal",
    "mcp serve": "it is what a coding agent starts; people have the pages",
    "dev curl": "it sends any request, for work with the API itself",
}  # fmt: skip

#: Commands that change nothing on the cluster.
_READS = """
    status; logs; deploy local logs; deploy local status; deploy logs; deploy status; preview-search; version; doctor;
    completion; dev auth-token; dev simulate-pool;
    campaign config; campaign describe; campaign list; campaign runs; campaign wait;
    gate list; experiment budget show; experiment config; experiment config-schema; experiment describe;
    experiment download; experiment download-model-def; experiment export; experiment follow; experiment list;
    experiment list-checkpoints;
    experiment list-trials; experiment logs; experiment plan; experiment plot; experiment replay; experiment rungs;
    experiment wait; experiment why;
    export mlflow;
    trial describe; trial download; trial logs; trial support-bundle; trial why;
    checkpoint describe; checkpoint download; model describe; model list; model list-versions;
    workspace budget show; token budget show;
    workspace bindings list; workspace describe; workspace list; workspace list-members; workspace list-pools;
    workspace list-projects; project describe; project list; project list-experiments; template describe; template list;
    command config; command describe; command list; command logs; notebook config; notebook describe; notebook list;
    notebook logs; notebook open; shell config; shell describe; shell list; shell logs; shell show-ssh-command;
    shell ssh-config; tensorboard config; tensorboard describe; tensorboard list; tensorboard logs; tensorboard open;
    task config; task list; task logs; task why; job list; agent join-token list; agent list; slot list;
    resource-pool access list; resource-pool bindings list-workspaces; resource-pool describe; resource-pool list;
    resources aggregated;
    resources allocations; resources raw; user list; user whoami; user-group describe; user-group list;
    rbac describe-role; rbac list-groups-roles; rbac list-roles; rbac list-users-roles; rbac my-permissions;
    token describe; token list; config-policies describe; webhook deliveries; webhook list; audit list; audit verify;
    master cluster-message get; master config check; master config show; auth list-providers; master info; master logs;
    master version; import plan; import verify; import status; import list
"""
READS = frozenset(" ".join(name.split()) for name in _READS.split(";"))


def page() -> str:
    """The table as Markdown."""
    lines = [
        "# What the pages do, by command",
        "",
        "Generated from `docs/actions.py`: every command of `det` that changes something, and where [the"
        " pages](../web-ui.md) do it. A test holds that. What your roles do not allow is not shown.",
        "",
        "| command | where in the pages | button or field |",
        "| --- | --- | --- |",
    ]
    for command, place in ACTIONS.items():
        shown = (
            f"{place.page} | {place.button.strip()}"
            if isinstance(place, Action)
            else f"in a terminal only: {place} | none"
        )
        lines.append(f"| `det {command}` | {shown} |")
    return "\n".join([*lines, ""])
