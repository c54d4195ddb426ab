"""Who is logged in where: the cache of tokens that `det user login` fills, and how passwords are sent.

The cache is `<config dir>/determined/auth.json`: `{"version": 2, "masters": {<url>: {"active_user", "tokens"}}}`.
"""

from __future__ import annotations

import contextlib
import os

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

_SALT = "GubPEmmotfiK9TMD6Zdw"
_VERSION = 2


def hash_password(password: str) -> str:
    """What is sent instead of a password: hex(SHA-512(salt + password)); an empty password stays empty."""
    import hashlib

    return hashlib.sha512((_SALT + password).encode()).hexdigest() if password else ""


def config_dir() -> str:
    """The folder of this package's own files: `DET_DEBUG_CONFIG_PATH` or the user's config folder, + `determined`."""
    base = os.environ.get("DET_DEBUG_CONFIG_PATH") or os.environ.get("XDG_CONFIG_HOME")
    return os.path.join(base or os.path.join(os.path.expanduser("~"), ".config"), "determined")


class TokenStore:
    """The cache of tokens. Several processes may use it at once."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or os.path.join(config_dir(), "auth.json")

    def active_user(self, master: str) -> str | None:
        """Who logged in last at `master`, if still logged in."""
        return self._entry(self._load(), master).get("active_user") or None

    def token(self, master: str, user: str) -> str | None:
        """The token of `user` at `master`."""
        return self._entry(self._load(), master).get("tokens", {}).get(user)

    def users(self, master: str) -> list[str]:
        """Who has a token for `master`."""
        return sorted(self._entry(self._load(), master).get("tokens", {}))

    def set(self, master: str, user: str, token: str, *, active: bool = True) -> None:
        """Keep the token of `user`, and with `active` make `user` the one who is used by default."""
        with self._change() as content:
            entry: dict[str, Any] = content["masters"].setdefault(master, {"active_user": None, "tokens": {}})
            entry["tokens"][user] = token
            if active:
                entry["active_user"] = user

    def drop(self, master: str, user: str) -> None:
        """Forget the token of `user`."""
        with self._change() as content:
            entry: dict[str, Any] = content["masters"].get(master, {})
            entry.get("tokens", {}).pop(user, None)
            if entry.get("active_user") == user:
                entry["active_user"] = None

    @staticmethod
    def _entry(content: dict[str, Any], master: str) -> dict[str, Any]:
        return content["masters"].get(master) or {}

    def _load(self) -> dict[str, Any]:
        import json

        try:
            with open(self.path, encoding="utf-8") as f:
                content: Any = json.load(f)
            masters = content["masters"]
            if content["version"] == _VERSION and all(isinstance(m["tokens"], dict) for m in masters.values()):
                return content
        except FileNotFoundError:
            pass  # nobody has logged in yet
        except OSError as e:
            raise errors.InvalidConfigurationException(
                f"the token cache {self.path} can't be read: {e.strerror}"
            ) from e
        except (ValueError, KeyError, TypeError, AttributeError):
            # A damaged cache costs a login, nothing more: it must not lock anybody out.
            return {"version": _VERSION, "masters": {}}
        return {"version": _VERSION, "masters": {}}

    def _change(self) -> contextlib.AbstractContextManager[dict[str, Any]]:
        return changing(self.path, self._load)


@contextlib.contextmanager
def changing(path: str, load: Callable[[], dict[str, Any]]) -> Generator[dict[str, Any], None, None]:
    """Change a file of JSON that several processes may change at once; only its user may read it.

    Args:
        path: The file; its folder is made.
        load: What it holds now.
    """
    import json

    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with _locked(path + ".lock"):
        content = load()
        yield content
        temporary = f"{path}.{os.getpid()}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as f:
                json.dump(content, f, indent=2)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


@contextlib.contextmanager
def _locked(path: str) -> Generator[None, None, None]:
    try:
        import fcntl
    except ImportError:  # Windows: no lock, and the rename still keeps the file whole
        yield
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
