"""Chooses points with Optuna's samplers. Optuna is an extra: it is loaded when the first point is asked for."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from workflows.config import CategoricalHp, IntHp, LogHp
from workflows.messages import ErrorType
from workflows.searchers.study import (
    Asked,
    Begun,
    Entry,
    Parameter,
    Point,
    StudySettings,
    Suggestion,
    SuggestOrder,
    Told,
    bounds,
    hparams_of,
    parameters,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

#: By their names in a config.
_SAMPLERS = {
    "tpe": "TPESampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "nsgaii": "NSGAIISampler",
    "qmc": "QMCSampler",
    "random": "RandomSampler",
}
#: What they need besides Optuna, which imports it when some trials are done: too late to tell the user.
_NEEDS = {"cmaes": ("cmaes",), "gp": ("torch", "scipy"), "qmc": ("scipy",)}
#: These leave notes in the study when they choose a point, and read them again. A study that is built anew from the
#: history gets the notes by choosing all points again.
_WITH_NOTES = ("cmaes", "nsgaii", "qmc")
#: What Optuna raises over options and spaces that a sampler cannot work with.
_REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_MAX_STUDIES = 128


class Sampling:
    """Activities of the orchestrator, for experiments with the searcher `optuna`.

    Keeps the studies that it was asked about last, by their names, so that a point costs what Optuna takes and little
    more. Safe to use from several threads.
    """

    def __init__(self, max_studies: int = _MAX_STUDIES) -> None:
        self._studies: OrderedDict[str, _Study] = OrderedDict()
        self._max_studies = max_studies
        self._lock = threading.Lock()

    @activity.defn
    def suggest(self, order: SuggestOrder) -> Suggestion:
        """Choose a point. It is deterministic: the same order gives the same point, in any process and at any retry.

        Answers `needs_history` if the order continues a study that is not here. Pure computation: milliseconds for
        most samplers, seconds for `gp` with a long history.

        Raises:
            ApplicationError: Optuna or one of its parts is not installed, or it cannot work with the options or with
                the space; not retryable, the text is for the user.
        """
        study = self._take(order)
        if study is None and order.known:
            return Suggestion(number=order.number, needs_history=True)
        settings = order.settings
        try:
            study = study or _Study(settings)
            point = study.answer if study.name == order.name else study.advance(order.entries)
        except ImportError as error:
            raise _unusable(_missing(settings.sampler, error)) from error
        except _REFUSALS as error:
            text = f"Optuna's sampler {settings.sampler!r} cannot go on: {type(error).__name__}: {error}"
            raise _unusable(text) from error
        study.name, study.answer = order.name, point
        self._keep(study)
        return Suggestion(number=order.number, hparams=hparams_of(settings.space, point))

    def _take(self, order: SuggestOrder) -> _Study | None:
        """Take a study out for exclusive use: it is not among the others meanwhile, and gone if it fails."""
        with self._lock:
            return self._studies.pop(order.name, None) or self._studies.pop(order.known, None)

    def _keep(self, study: _Study) -> None:
        with self._lock:
            self._studies[study.name] = study
            while len(self._studies) > self._max_studies:
                self._studies.popitem(last=False)


class _Study:
    """A study of Optuna's, and what is needed to continue it.

    Attributes:
        name: Its name in orders.
        answer: The last point that it chose.
    """

    def __init__(self, settings: StudySettings) -> None:
        optuna = _quiet_optuna()
        for package in _NEEDS.get(settings.sampler, ()):
            importlib.import_module(package)
        self.name = ""
        self.answer: Point = []
        self._settings = settings
        self._parameters = {_label(path): leaf for path, leaf in parameters(settings.space)}
        self._distributions = {label: _distribution(leaf) for label, leaf in self._parameters.items()}
        self._sampler_type = self._remembering(getattr(optuna.samplers, _SAMPLERS[settings.sampler]))
        self._options = _checked(settings, self._sampler_type)
        self._study: Study = optuna.create_study(
            direction="minimize" if settings.smaller_is_better else "maximize",
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        self._size = 0
        # Optuna's number of each trial, in order of beginning; None for those that it does not hear of.
        self._numbers: list[int | None] = []
        # number and parameters of a point that is chosen, and whose trial has not begun
        self._pending: tuple[int, dict[str, Any]] | None = None
        self._has_results = False
        self._relative_space: dict[str, BaseDistribution] | None = None

    def advance(self, entries: Sequence[Entry]) -> Point:
        """Take entries, the last of them a question, and answer that."""
        for place, entry in enumerate(entries, 1):
            if isinstance(entry, Asked):
                if place == len(entries) or self._settings.sampler in _WITH_NOTES:
                    self._ask(entry.asked)
            elif isinstance(entry, Begun):
                self._begin(entry.point)
            else:
                self._tell(entry)
        if self._pending is None:
            raise ValueError("the order ends without a question")
        params = self._pending[1]
        return [_within(leaf, params[label]) for label, leaf in self._parameters.items()]

    def _ask(self, number: int) -> None:
        self._drop_pending()  # the search did without that answer
        self._study.sampler = self._sampler(number)
        trial = self._study.ask(self._distributions)
        self._pending = (self._size, trial.params)
        self._size += 1

    def _begin(self, point: Point | None) -> None:
        """Take a trial's point as it was recorded, even if another version of Optuna chose it."""
        from optuna.trial import TrialState, create_trial

        notes: dict[str, Any] = {}
        if self._pending is not None:
            number, params = self._pending
            if point is not None and point == [
                _within(leaf, params[label]) for label, leaf in self._parameters.items()
            ]:
                self._numbers.append(number)
                self._pending = None
                return
            notes = self._study.get_trials(deepcopy=False)[number].system_attrs
            self._drop_pending()
        if point is None:
            self._numbers.append(None)
            return
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=dict(zip(self._parameters, point, strict=True)),
                distributions=self._distributions,
                system_attrs=notes,
            )
        )
        self._numbers.append(self._size)
        self._size += 1

    def _tell(self, told: Told) -> None:
        from optuna.trial import TrialState

        number = self._numbers[told.trial]
        if number is None:
            return
        if told.value is None:
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, told.value)
            self._has_results = True

    def _drop_pending(self) -> None:
        from optuna.trial import TrialState

        if self._pending is not None:
            self._study.tell(self._pending[0], state=TrialState.FAIL)
            self._pending = None

    def _sampler(self, number: int) -> BaseSampler:
        """A sampler of its own for each question: what it draws depends on the seed and the question alone."""
        from optuna.samplers import RandomSampler

        seed = _seed(self._settings.seed, number)
        if self._settings.sampler == "tpe" and _reseeded(self._study.sampler, seed):
            return self._study.sampler
        if self._settings.sampler == "qmc":
            # All points are of one sequence; its place in it is a note in the study.
            fields = {"seed": self._settings.seed, "independent_sampler": RandomSampler(seed=seed)}
        else:
            fields = {"seed": seed}
        return self._sampler_type(**{**self._options, **fields})

    def _remembering(self, sampler: type[BaseSampler]) -> type[BaseSampler]:
        """The sampler, with a memory for what Optuna otherwise works out from all trials again: the space they share.

        That is always the same one here, since the space of a study never changes.
        """
        study = self

        def infer_relative_search_space(self: Any, *args: Any) -> dict[str, BaseDistribution]:
            if study._relative_space is not None:
                return dict(study._relative_space)
            found: dict[str, BaseDistribution] = sampler.infer_relative_search_space(self, *args)
            # `group` keeps further results of this call
            if study._has_results and not study._settings.options.get("group"):
                study._relative_space = dict(found)
            return found

        return type(sampler.__name__, (sampler,), {"infer_relative_search_space": infer_relative_search_space})


def _quiet_optuna() -> ModuleType:
    """Optuna, without its words about studies and about what later releases change."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
    warnings.filterwarnings("ignore", module=r"optuna\.")
    return optuna


def _checked(settings: StudySettings, sampler: type[BaseSampler]) -> dict[str, Any]:
    """The options, if the sampler takes options of these names."""
    known = [name for name in inspect.signature(sampler.__init__).parameters if name not in ("self", "seed")]
    unknown = sorted(set(settings.options) - set(known))
    if unknown:
        names = ", ".join(known) or "none"
        raise _unusable(f"the optuna sampler {settings.sampler!r} takes no option {unknown[0]!r}; it takes: {names}")
    return settings.options


def _label(path: tuple[str, ...]) -> str:
    """A name for a nested hyperparameter that no other one can have; that of one at the top is its own."""
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def _distribution(leaf: Parameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(leaf, CategoricalHp):
        return CategoricalDistribution(range(len(leaf.vals)))  # the values may be lists and maps, which Optuna refuses
    if isinstance(leaf, IntHp):
        return IntDistribution(leaf.minval, leaf.maxval)
    low, high = bounds(leaf)
    return FloatDistribution(float(low), float(high), log=isinstance(leaf, LogHp))


def _within(leaf: Parameter, value: Any) -> int | float:
    """The value; samplers that work with floats may step over the ends of a range by a rounding error."""
    if isinstance(leaf, CategoricalHp):
        return int(value)
    if isinstance(leaf, IntHp):
        return min(max(int(value), leaf.minval), leaf.maxval)
    low, high = bounds(leaf)
    return min(max(float(value), float(low)), float(high))


def _seed(seed: int, number: int) -> int:
    """A seed in [0, 2**32) that nearby questions do not share."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")


def _reseeded(sampler: BaseSampler, seed: int) -> bool:
    """Start a TPE sampler over, if it has the insides that are known here.

    It is then what its constructor would make: TPE keeps nothing else that matters. That takes a tenth of what a point
    takes, and the public `reseed_rng` takes no seed.
    """
    owners = (sampler, getattr(sampler, "_random_sampler", None))
    generators: list[Any] = [getattr(getattr(owner, "_rng", None), "rng", None) for owner in owners]
    if not all(hasattr(generator, "seed") for generator in generators):
        return False
    for generator in generators:
        generator.seed(seed)
    return True


def _missing(sampler: str, error: ImportError) -> str:
    """What to install."""
    package = (error.name or "optuna").partition(".")[0]
    extra = "" if package in ("optuna", "cmaes", "scipy") else f" {package}"
    return (
        f"the searcher 'optuna' with the sampler {sampler!r} needs the Python package {package!r} where the "
        f"orchestrator runs: pip install 'undeterred[optuna]'{extra}"
    )


def _unusable(message: str) -> ApplicationError:
    return ApplicationError(message, type=ErrorType.SAMPLER_UNUSABLE, non_retryable=True)
