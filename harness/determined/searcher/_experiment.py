"""Creating the experiment of a custom search, once."""

from __future__ import annotations

import os

from determined import errors
from determined.common.api._url import api_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.api._session import Session

# Sending the model directory and storing it may take a while.
_CREATE_TIMEOUT_S = 300.0


def config_text(exp_config: dict[str, Any] | str | os.PathLike[str]) -> str:
    """The experiment's configuration as YAML, checked to be one of a custom search.

    Raises:
        ValueError: It has another searcher, or none.
        FileNotFoundError: There is no such file.
    """
    import yaml

    if isinstance(exp_config, dict):
        where, text = "the experiment's configuration", yaml.safe_dump(exp_config)
    else:
        where = f"the experiment's configuration {os.fspath(exp_config)!r}"
        with open(exp_config, encoding="utf-8") as f:
            text = f.read()
    try:
        config: Any = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ValueError(f"{where} is not valid YAML: {e}") from e
    searcher: Any = config.get("searcher") if isinstance(config, dict) else None  # pyright: ignore
    name: Any = searcher.get("name") if isinstance(searcher, dict) else None  # pyright: ignore
    if name != "custom":
        found = "it has no searcher.name" if name is None else f"its searcher.name is {name!r}"
        raise ValueError(f"{where} must have `searcher: {{name: custom, metric: …}}`, but {found}")
    return text


def session_of_client() -> Session:
    """The session of `determined.experimental.client`, and so what `client.login()` said."""
    from determined.experimental import client

    return client._client()._session  # pyright: ignore[reportPrivateUsage]


def create_experiment(session: Session, text: str, model_dir: str | os.PathLike[str] | None, key: str) -> int:
    """Create the experiment and start it; with a key that was used before, find the one of then.

    Args:
        session: Who creates it.
        text: Its configuration.
        model_dir: The directory with the training code; None takes the working directory.
        key: An idempotency key, kept by the caller from before the first attempt.

    Returns:
        Its id.

    Raises:
        InvalidContextException: The directory can't be packed.
        InvalidRequestException: The master refuses the configuration.
    """
    import logging

    from determined.common.context import Folder
    from determined.common.experimental._contexts import code_of
    from determined.common.experimental._wire import warnings_of

    body: dict[str, Any] = {"config": text, "activate": True}
    body |= code_of(session, Folder("." if model_dir is None else model_dir))
    answer = session.post(api_path("experiments"), body, idempotency_key=key, timeout_s=_CREATE_TIMEOUT_S).json()
    logger = logging.getLogger("determined.searcher")
    for warning in warnings_of(answer):
        logger.warning(f"creating the experiment: {warning}")
    try:
        return int(answer["experiment"]["id"])
    except (KeyError, TypeError, ValueError) as e:
        raise errors.APIException(f"the answer names no experiment: {answer!r}", where="POST experiments") from e
