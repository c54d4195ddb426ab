"""What scripts for Determined count on: names, exceptions and forms of calls, as the published package has them."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from determined import core, errors, import_from_path, searcher, util
from determined.common import storage
from determined.common import util as common_util
from determined.common.api import Session
from determined.common.api import errors as api_errors
from determined.common.experimental.experiment import Experiment
from determined.experimental import OrderBy, client, core_v2


@pytest.mark.parametrize("make", ["from_torch_distributed", "from_deepspeed"])
@pytest.mark.parametrize("kind", [KeyError, RuntimeError])
def test_context_of_a_launcher_that_is_not_there_is_a_key_error(
    make: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        kind, match="^the environment variable RANK is not set, but must be a number; start this script"
    ):
        getattr(core.DistributedContext, make)()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["3", "echo", "hi"], "[rank=3] hi"),
        (["3", "--", "echo", "hi"], "[rank=3] hi"),
        (["MY_RANK", "echo", "hi"], "[rank=4] hi"),
        (["NOT_SET,MY_RANK", "echo", "hi"], "[rank=4] hi"),
        (["--no-redirect-stdio", "3", "echo", "--", "hi"], "[rank=3] -- hi"),
        (
            ["NOT_SET", "echo", "hi"],
            "RANK is 'NOT_SET', but must be a number, or name an environment variable that is set",
        ),
        (["WORD", "echo", "hi"], "RANK: the environment variable WORD is 'two', but must be a number"),
        (["3"], "use: python3 -m determined.launch.wrap_rank RANK [--] command"),
    ],
)
def test_wrap_rank_takes_a_number_or_names_of_variables(arguments: list[str], told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "determined.launch.wrap_rank", *arguments],
        env={**os.environ, "MY_RANK": "4", "WORD": "two"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert (done.returncode == 0) == told.startswith("[rank")


def test_whatever_comes_of_asking_the_master_is_a_bad_request_exception() -> None:
    kinds = [
        *(api_errors.APIException, api_errors.NotFoundException, api_errors.ForbiddenException),
        *(api_errors.UnauthenticatedException, api_errors.MasterNotFoundException, api_errors.DeleteFailedException),
        api_errors.InvalidCredentialsException,
    ]
    for kind in kinds:
        assert issubclass(kind, api_errors.BadRequestException)
    assert issubclass(api_errors.InvalidCredentialsException, api_errors.UnauthenticatedException)
    assert issubclass(api_errors.EmptyResultException, api_errors.BadResponseException)
    found = errors.api_exception(404, "no such trial")
    assert (found.status_code, found.response_error) == (404, "no such trial")
    for name in ("CorruptTokenCacheException", "CorruptCertificateCacheException"):
        assert issubclass(getattr(api_errors, name), Exception)


def test_upload_names_what_is_wrong_by_the_types_of_old(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with core.init(checkpoint_storage=str(tmp_path / "storage")) as context:
        wrong = {None: RuntimeError, "/none": FileNotFoundError, str(tmp_path / "file"): NotADirectoryError}
        for source, kind in wrong.items():
            with pytest.raises(kind, match="^upload: ckpt_dir is"):
                context.checkpoint.upload(source, {"steps_completed": 1})


@pytest.mark.parametrize("metadata", [None, {}, {"steps_completed": "1"}, {"steps_completed": 1.5}, {"note": "x"}])
def test_nobody_asks_for_steps_where_there_is_no_master(tmp_path: Path, metadata: Any) -> None:
    (tmp_path / "source").mkdir()
    with core.init(checkpoint_storage=str(tmp_path / "storage")) as context:
        uploaded = context.checkpoint.upload(tmp_path / "source", metadata)
        assert context.checkpoint.get_metadata(uploaded) == (metadata or {})
        with context.checkpoint.store_path(metadata) as (_, stored):
            pass
        assert context.checkpoint.get_metadata(stored) == (metadata or {})
        with pytest.raises(TypeError, match="metadata.a is"):
            context.checkpoint.upload(tmp_path / "source", {"a": object()})


@pytest.mark.parametrize("kind", [AssertionError, ValueError])
def test_sort_and_order_of_checkpoints_come_together(kind: type[Exception]) -> None:
    experiment = Experiment(1, Session("http://127.0.0.1:1"))
    for wanted in ({"sort_by": "loss"}, {"order_by": OrderBy.ASC}):
        with pytest.raises(kind, match="sort_by and order_by must be given together"):
            experiment.list_checkpoints(**wanted)  # pyright: ignore[reportArgumentType]
    wrong: Any = 3
    with pytest.raises(ValueError, match="sort_by is 3, but must be"):
        experiment.list_checkpoints(sort_by=wrong, order_by=OrderBy.ASC)


def test_names_are_where_scripts_import_them() -> None:
    from determined.common import experimental

    assert experimental.Determined is client.Determined
    assert (experimental.OrderBy, experimental.TrialSortBy) == (OrderBy, client.TrialSortBy)
    assert core_v2.DistributedContext is core.DistributedContext
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        experimental.nonsense  # noqa: B018


def test_session_takes_its_arguments_in_the_order_of_old() -> None:
    session = Session("http://127.0.0.1:1", "ada", "token", None)
    assert (session.username, session.token, session.cert) == ("ada", "token", None)


def test_import_from_path_is_not_nested(tmp_path: Path) -> None:
    with import_from_path(tmp_path), pytest.raises(RuntimeError, match="can't be nested"), import_from_path(tmp_path):
        pass
    with import_from_path(tmp_path):  # the first is over
        pass


@pytest.mark.parametrize("text", ["", "  ", "s3:/bucket", "C:\\data", "ftp://a/b"])
def test_storage_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException, match="checkpoint_storage"):
        storage.build(text)


def test_local_search_runner_says_where_its_state_is(tmp_path: Path) -> None:
    method: Any = object()
    runner = searcher.LocalSearchRunner(method, tmp_path)
    assert (runner.searcher_dir, runner.state_path) == (tmp_path, None)
    runner.state.experiment_id = 7
    assert runner.state_path == tmp_path / "exp_7"


def test_small_functions_answer_as_of_old(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert [common_util.sizeof_fmt(n) for n in (0, 1023, 1024, 1234567, -4)] == [
        "0.0B", "1023.0B", "1.0KB", "1.2MB", "-4.0B"]  # fmt: skip
    assert [common_util.strtobool(text) for text in ("yes", "1", "TRUE", "maybe", "no", "off", "")] == [
        True, True, True, True, False, False, False]  # fmt: skip
    assert list(common_util.chunks([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert common_util.parse_protobuf_timestamp("2024-01-02T03:04:05.678Z").isoformat() == "2024-01-02T03:04:05+00:00"
    assert not common_util.is_protobuf_timestamp("x")
    assert common_util.yaml_safe_dump({"b": [1, {"c": 2}], "a": "x"}) == "a: x\nb:\n- 1\n- {c: 2}\n"
    with pytest.raises(SystemExit):
        common_util.safe_load_yaml_with_exceptions("a: [")
    assert "invalid experiment config file" in capfd.readouterr().err
    with pytest.raises(TimeoutError):
        common_util.wait_for(lambda: (False, 1), timeout=0.1)
    assert common_util.wait_for(lambda: (True, 1)) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert common_util.deprecated("use b")(abs)(-1) == 1
    assert str(caught[0].message) == "abs is deprecated and will be removed in a future version. use b."
    assert util.filter_duplicates([1, 2, 2, 3, 3, 3]) == {2, 3}
    assert [util.humanize_float(n) for n in (1234.5678, 0.00012345, 12.3)] == [1235.0, 0.0001234, 12.3]
    assert (
        util.json_encode({"v": float("nan"), "w": b"ab", "x": (1, None)}) == '{"v": "NaN", "w": "ab", "x": [1, null]}'
    )
    with pytest.raises(TypeError, match="Unserializable"):
        util.json_encode({"v": object})
    assert util.merge_dicts({"a": 1, "d": {"x": 1}}, {"d": {"y": 2}}) == {"a": 1, "d": {"x": 1, "y": 2}}
    config = {"checkpoint_storage": {"access_key": "AK"}, "environment": {"registry_auth": {"password": "p"}}}
    assert util.mask_config_dict(config) == {
        "checkpoint_storage": {"access_key": "********"}, "environment": {"registry_auth": {"password": "********"}}
    }  # fmt: skip
    assert util.calculate_batch_sizes({"global_batch_size": 33}, 4, "T") == (8, 32)
    with pytest.raises(errors.InvalidExperimentException, match="global_batch_size: 3"):
        util.calculate_batch_sizes({"global_batch_size": 3}, 4, "T")
    (tmp_path / "link").touch()
    util.force_create_symlink("/x", str(tmp_path / "link"))
    assert os.readlink(tmp_path / "link") == "/x"
