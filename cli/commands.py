"""The names of `det`'s commands and where each is: all that `det --help` needs to know.

Nothing is imported here: the module of a command is loaded when the command is called.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Entry:
    """A word that may follow `det`.

    Args:
        name: The full name.
        help: One line.
        target: `module` or `module:word`: the module with the typer app, and a word to put before the arguments.
        shortest: The shortest prefix that also means it; "" if there is none.
        synonyms: Other names.
    """

    def __init__(self, name: str, help: str, target: str, *, shortest: str = "", synonyms: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.module, _, self.word = target.partition(":")
        self.shortest = shortest
        self.synonyms = synonyms

    @property
    def shown(self) -> str:
        """The name with its short forms, as help shows it: `e|xperiment`."""
        name = self.name if not self.shortest else f"{self.shortest}|{self.name[len(self.shortest) :]}"
        return " ".join([name, *self.synonyms])

    def is_meant_by(self, word: str) -> bool:
        """Whether `word` is one of its names."""
        if word == self.name or word in self.synonyms:
            return True
        return bool(self.shortest) and word.startswith(self.shortest) and self.name.startswith(word)


ENTRIES = (
    Entry("up", "start a cluster on this machine", "deploy:up"),
    Entry("down", "stop it", "deploy:down"),
    Entry("status", "show which of its processes run", "deploy:status"),
    Entry("logs", "show the log of one of its processes", "deploy:logs"),
    Entry("deploy", "the same commands by their longer names: deploy local …", "deploy_local", shortest="d"),
    Entry("experiment", "create, list, watch and control experiments", "experiment", shortest="e"),
    Entry("preview-search", "show the trials and the cost of a search before it runs", "plan:plan"),
    Entry("trial", "describe trials and read their logs", "trial", shortest="t"),
    Entry("checkpoint", "describe, download and delete checkpoints", "checkpoint", shortest="c"),
    Entry("model", "the model registry: models and their versions", "model", shortest="m"),
    Entry("workspace", "workspaces: projects with members, storage and pools", "workspace", shortest="w"),
    Entry("project", "projects: experiments within a workspace", "project", shortest="p"),
    Entry("template", "templates: defaults for the configurations of experiments", "template", synonyms=("tpl",)),
    Entry("command", "commands: programs that run once, without an experiment", "command", synonyms=("cmd",)),
    Entry("notebook", "notebooks: JupyterLab on slots of the cluster", "notebook"),
    Entry("shell", "shells: a terminal on slots of the cluster, by ssh", "shell"),
    Entry("tensorboard", "TensorBoards of experiments and trials", "tensorboard"),
    Entry("task", "tasks of all kinds: run your own, look, read logs", "task"),
    Entry("job", "jobs in the queue of a resource pool", "job", shortest="j"),
    Entry("agent", "agents: the hosts that run trials", "agent", shortest="a"),
    Entry("slot", "slots: the GPUs or cores of agents", "slot", shortest="s"),
    Entry("resource-pool", "resource pools: agents that share a queue", "resource_pool", synonyms=("rp",)),
    Entry("resources", "report how slots were used", "resources", shortest="res"),
    Entry("user", "log in and out; manage users", "user", shortest="u"),
    Entry("user-group", "groups of users", "user_group"),
    Entry("rbac", "roles and permissions, by workspace", "rbac"),
    Entry("token", "access tokens, by which programs log in", "token", synonyms=("tkn",)),
    Entry("campaign", "campaigns: steps that come after each other, and their schedules", "campaign"),
    Entry("gate", "approve or deny what waits for approval", "gate"),
    Entry("config-policies", "policies: defaults and limits for configurations", "config_policies", synonyms=("cp",)),
    Entry("webhook", "webhooks: send events to other systems", "webhook"),
    Entry("mcp", "serve the cluster to a coding agent (Model Context Protocol)", "mcp_server"),
    Entry("audit", "the audit log: who changed what", "audit"),
    Entry("import", "bring what a Determined cluster or another tracker has over", "importing"),
    Entry("export", "write experiments for other programs: MLflow, pandas", "tracked"),
    Entry("master", "information, settings and log of the cluster", "master"),
    Entry("dev", "tools for work with the API itself", "dev"),
    Entry("auth", "log in by an identity provider", "auth"),
    Entry("oauth", "comes with a later release", "later:oauth"),
    Entry("version", "print the versions of this client and of the cluster", "master:version"),
    Entry("doctor", "check this client, the cluster and this machine, and say what to do", "doctor:doctor"),
    Entry("completion", "print the script that completes in bash, zsh or fish", "completion:completion"),
)
"""All commands, in the order of the help page."""


def find(word: str) -> Entry | None:
    """The command that a word means, if it is one."""
    return next((entry for entry in ENTRIES if entry.is_meant_by(word)), None)


def help_page() -> str:
    """What `det --help` prints."""
    width = max(len(entry.shown) for entry in ENTRIES)
    lines = [f"  {entry.shown:{width}}  {entry.help}" for entry in ENTRIES]
    return "\n".join(
        [
            "Usage: det [OPTIONS] COMMAND [ARGS]...",
            "",
            "  Train models on a cluster: experiments, their trials, checkpoints and logs.",
            "",
            "Options:",
            "  -m, --master URL  the cluster (default: $DET_MASTER, then localhost:8080)",
            "  -u, --user NAME   user (default: the last one to log in)",
            "  -v, --version     print the version of this client",
            "  -h, --help        this page; `det COMMAND --help` tells more",
            "",
            "Commands (e|xperiment: every abbreviation down to `e` works):",
            *lines,
            "",
            "Exit codes: 0 ok, 1 failed, 2 usage, 3 not logged in or allowed, 4 not found, 5 conflict, 130 Ctrl-C.",
            "DET_DEBUG=1 shows tracebacks.",
        ]
    )
