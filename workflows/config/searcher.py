"""The search section: which method explores the space, for how long, and by which metric.

Both generations live here: `max_length` (operations) and `max_time` with `time_metric` (events). What the methods
do is in workflows/searchers. Source: spec experiment-config.md §7; `pbt` and `optuna` are ours.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from workflows.config.base import INT64_MAX, MAX_RUNGS, LengthUnit, Number, SearchLength, Section

SEARCHER_UNION_MESSAGE = (
    "is not an object where object[\"name\"] is one of 'single', 'random', 'grid', 'custom', or 'adaptive_asha'"
)
REMOVED_SEARCHERS = ("sync_halving", "adaptive", "adaptive_simple")


class SearcherBase(Section):
    """What every searcher has."""

    # The name and the metric may come from a template, so they are demanded only after merging.
    model_config = ConfigDict(json_schema_extra={"x-complete-only": True})

    metric: str = Field(description="Name of the validation metric that decides which trial is better.")
    smaller_is_better: bool = Field(default=True, description="Whether a smaller metric is better.")


class BuiltinSearcherBase(SearcherBase):
    """What every searcher that the platform itself runs has: trials may start from what is there."""

    source_trial_id: int | None = Field(
        default=None, ge=0, le=INT64_MAX, description="Start every trial from this trial's newest checkpoint."
    )
    source_checkpoint_uuid: str | None = Field(
        default=None, description="Start every trial from this checkpoint; source_trial_id wins if both are set."
    )


class _WithLength(BuiltinSearcherBase):
    max_length: SearchLength | None = Field(
        default=None,
        description="How long a trial trains at most, as the server hands it out. Newer code decides this itself.",
    )


class SingleSearcher(_WithLength):
    """One trial."""

    name: Literal["single"] = Field(description="One trial with constant hyperparameters.")


class _ManyTrials(_WithLength):
    max_concurrent_trials: int = Field(
        default=16, ge=0, le=INT64_MAX, description="Trials that run at the same time; 0 means all."
    )


class RandomSearcher(_ManyTrials):
    """Trials with hyperparameters drawn at random."""

    name: Literal["random"] = Field(description="Hyperparameters drawn at random.")
    max_trials: int = Field(ge=1, le=INT64_MAX, description="Number of trials.")


class GridSearcher(_ManyTrials):
    """A trial for each point of a grid."""

    name: Literal["grid"] = Field(description="A trial for each point of a grid.")


class HalvingSearcherBase(_ManyTrials):
    """What both asynchronous halving searchers have."""

    max_trials: int = Field(ge=1, le=INT64_MAX, description="Number of trials.")
    divisor: Number = Field(default=4, gt=1, le=INT64_MAX, description="One trial in this many survives a rung.")
    time_metric: str | None = Field(
        default=None, description="Metric in each validation report that says how far the trial is."
    )
    max_time: int | None = Field(
        default=None, ge=1, le=INT64_MAX, description="Value of time_metric at which a trial is done."
    )
    stop_once: bool = Field(
        default=False, description="With max_length: stop bad trials at once instead of pausing them at each rung."
    )


class AsyncHalvingSearcher(HalvingSearcherBase):
    """Asynchronous successive halving with one bracket."""

    name: Literal["async_halving"] = Field(description="Asynchronous successive halving, one bracket.")
    num_rungs: int = Field(ge=1, le=MAX_RUNGS, description="Number of decisions in a trial's life.")


class AdaptiveAshaSearcher(HalvingSearcherBase):
    """Several brackets of asynchronous successive halving."""

    name: Literal["adaptive_asha"] = Field(description="Asynchronous successive halving, several brackets.")
    mode: Literal["aggressive", "standard", "conservative"] = Field(
        default="standard", description="How early bad trials are stopped."
    )
    max_rungs: int = Field(default=5, ge=1, le=MAX_RUNGS, description="Largest number of rungs in a bracket.")
    bracket_rungs: list[Annotated[int, Field(ge=1, le=MAX_RUNGS)]] = Field(
        default=[], description="Number of rungs of each bracket, instead of mode and max_rungs."
    )
    lend_places: bool = Field(
        default=True,
        description="Whether a bracket that has no trial for one of its places lends it to the others; false is what"
        " Determined does, which leaves it empty.",
    )


class ReplaceFunction(Section):
    """Who is replaced after a round of population based training."""

    truncate_fraction: Number = Field(
        default=0.2,
        gt=0,
        le=0.5,
        description="Share of the members, the worst ones, that is replaced after each round by copies of as many of"
        " the best; rounded down, but at least one member.",
    )


class ExploreFunction(Section):
    """How the hyperparameters of a copy are changed in population based training."""

    resample_probability: Number = Field(
        default=0.2, ge=0, le=1, description="Probability that a hyperparameter is drawn anew from its range."
    )
    perturb_factor: Number = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="A number that is not drawn anew is multiplied by 1 plus or 1 minus this, within its range.",
    )


class PbtSearcher(BuiltinSearcherBase):
    """Population based training: bad members go on from the checkpoints of good ones, with changed hyperparameters."""

    name: Literal["pbt"] = Field(description="Population based training.")
    population_size: int = Field(ge=2, le=INT64_MAX, description="Number of members; all train at the same time.")
    num_rounds: int = Field(ge=1, le=MAX_RUNGS, description="Rounds; after each the members are compared.")
    length_per_round: SearchLength = Field(description="How long each member trains in a round.")
    replace_function: ReplaceFunction = Field(default=ReplaceFunction(), description="Who is replaced after a round.")
    explore_function: ExploreFunction = Field(
        default=ExploreFunction(), description="How the hyperparameters of a copy are changed."
    )


class OptunaSearcher(_ManyTrials):
    """Trials whose hyperparameters one of Optuna's samplers chooses."""

    name: Literal["optuna"] = Field(description="Hyperparameters chosen by a sampler of Optuna.")
    max_trials: int = Field(ge=1, le=INT64_MAX, description="Number of trials.")
    sampler: Literal["tpe", "cmaes", "gp", "nsgaii", "qmc", "random"] = Field(
        default="tpe", description="The sampler; cmaes, gp and qmc need packages of their own."
    )
    sampler_options: dict[str, Any] = Field(
        default={},
        description="Arguments of the sampler's constructor, by their names in Optuna, such as n_startup_trials.",
    )


class CustomSearcher(SearcherBase):
    """A search that a program of the user's runs; keys that it alone understands are kept."""

    model_config = ConfigDict(extra="allow")

    name: Literal["custom"] = Field(description="A search that your own program runs.")
    unit: LengthUnit | None = Field(default=None, description="Unit of the lengths that your program asks for.")


SearcherConfig = Annotated[
    SingleSearcher
    | RandomSearcher
    | GridSearcher
    | AsyncHalvingSearcher
    | AdaptiveAshaSearcher
    | PbtSearcher
    | OptunaSearcher
    | CustomSearcher,
    Field(discriminator="name"),
]
