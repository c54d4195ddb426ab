"""The `det` command: finds the module of a command, runs it, turns errors into one sentence and an exit code.

Only this module and `cli.commands` are loaded for `det --help`; a test holds that.
"""

from __future__ import annotations

import os
import sys

from cli import commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

OK, FAILED, USAGE, AUTH, NOT_FOUND, CONFLICT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

_GLOBAL_OPTIONS = {"-m": "master", "--master": "master", "-u": "user", "--user": "user"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `det` with these arguments, by default the process'. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["__complete"]:  # asked by the script of `det completion`
        from cli.completion import answer

        return answer(words[1:])
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            return _print(commands.help_page())
        if word in ("-v", "--version"):
            from determined import __version__

            return _print(f"det {__version__}")
        if name not in _GLOBAL_OPTIONS:
            return _fail(f"no such option: {word}; see `det --help`", USAGE)
        if not equals and not words:
            return _fail(f"option {word} needs a value; see `det --help`", USAGE)
        options[_GLOBAL_OPTIONS[name]] = value if equals else words.pop(0)
    if not words:
        return _print(commands.help_page())
    entry = commands.find(words[0])
    if entry is None:
        return _fail(_no_such_command(words[0]), USAGE)
    return _run(entry, words[1:], options)


def run() -> NoReturn:
    """The console script."""
    if sys.platform == "win32":
        _prepare_windows()
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # `det … | head`: the reader has enough. Without this, Python complains when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End this process. Python would take down what is loaded first, object by object: a seventh of a short command.

    It does where another thread may still be at work.
    """
    threading = sys.modules.get("threading")
    if threading is None or threading.active_count() == 1:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _prepare_windows() -> None:
    """Write UTF-8 into pipes and files too: the encoding of the system lacks half of what tables are drawn with."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and not stream.isatty():
            reconfigure(encoding="utf-8")
    if sys.stdout.isatty() or sys.stderr.isatty():
        from colorama import just_fix_windows_console  # pyright: ignore  # typer brings it there

        just_fix_windows_console()


def _run(entry: commands.Entry, words: list[str], options: dict[str, str]) -> int:
    import importlib

    from cli import session

    prog = f"det {entry.name}"
    if entry.word:
        words, prog = [entry.word, *words], "det"
    try:
        session.configure(options.get("master"), options.get("user"))
        module = importlib.import_module(f"cli.{entry.module}")
        try:
            result = module.command().main(args=words, prog_name=prog, standalone_mode=False)
            sys.stdout.flush()
            return int(result or OK)
        finally:
            session.close()
    except BrokenPipeError:
        raise  # the console script's to say
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 -- this is where every error of a command becomes a sentence
        if os.environ.get("DET_DEBUG", "").lower() not in ("", "0", "false"):
            import traceback

            traceback.print_exc()
        if _is_trusted_now(error):
            # nothing was sent yet: the handshake is before the first request
            os.execv(sys.executable, [sys.executable, "-m", "cli", *sys.argv[1:]])
        return _tell(error)


def _is_trusted_now(error: Exception) -> bool:
    """Whether the master's certificate was what went wrong, and the user trusts it from now on."""
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return False
    from cli import trusting

    try:
        return trusting.is_about(error) and trusting.asked()
    except Exception as further:  # noqa: BLE001 -- as of any command
        _tell(further)
        return False


def _tell(error: Exception) -> int:
    from typer import Abort, TyperException

    from determined import errors

    if isinstance(error, Abort):
        return _fail("aborted", FAILED)
    if isinstance(error, TyperException):
        text = error.format_message().strip()
        if not text:  # the help page of a group that was called without a word
            getattr(error, "show", str)()
            return error.exit_code
        context: Any = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "det"
        return _fail(f"{text[0].lower()}{text[1:].rstrip('.')}; see `{path} -h`", error.exit_code)
    codes: tuple[tuple[type[Exception], int], ...] = (
        (errors.UnauthenticatedException, AUTH),
        (errors.ForbiddenException, AUTH),
        (errors.NotFoundException, NOT_FOUND),
        (errors.ConflictException, CONFLICT),
    )
    code = next((code for kind, code in codes if isinstance(error, kind)), FAILED)
    if isinstance(error, errors.NotFoundException):
        from cli import hints

        return _fail(error.message + hints.of(error.message), code)
    if isinstance(error, errors.APIException):
        return _fail(error.message, code)
    if isinstance(error, (errors.DeterminedException, ValueError)):
        return _fail(str(error), code)
    if isinstance(error, OSError):
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", code)
    return _fail(
        f"{type(error).__name__}: {error}. This is a bug: run it again with DET_DEBUG=1 and report the traceback.",
        code,
    )


def _no_such_command(word: str) -> str:
    import difflib

    names = [name for entry in commands.ENTRIES for name in (entry.name, *entry.synonyms)]
    close = difflib.get_close_matches(word, names, 1, 0.5)
    return f"no such command: {word!r}; " + (f"did you mean `det {close[0]}`?" if close else "see `det --help`")


def _print(text: str) -> int:
    sys.stdout.write(text + "\n")
    return OK


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    message = message.rstrip()
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        message = f"\x1b[31m{message}\x1b[0m"
    sys.stderr.write(message + "\n")
    return code


if __name__ == "__main__":
    run()
