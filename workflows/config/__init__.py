"""The experiment config: schema, defaults, merging, migration of older spellings, and errors that help.

Pure: no I/O, no clock. Start with :func:`parse_experiment_config`. Source: spec experiment-config.md.
"""

from workflows.config.base import Length, LengthUnit
from workflows.config.defaults import ClusterDefaults
from workflows.config.errors import ConfigError, Problem, Stage
from workflows.config.experiment import ExperimentConfig
from workflows.config.hyperparameters import (
    CategoricalHp,
    ConstHp,
    DoubleHp,
    Hyperparameter,
    Hyperparameters,
    IntHp,
    LeafHp,
    LogHp,
    axis_size,
    grid_size,
)
from workflows.config.merge import merge_configs
from workflows.config.parse import apply_overrides, loose_numbers, parse_experiment_config, read_config
from workflows.config.policies import LogPolicy, RetentionPolicy
from workflows.config.resources import BindMount, Environment, Resources
from workflows.config.schema import experiment_config_json_schema
from workflows.config.searcher import (
    AdaptiveAshaSearcher,
    AsyncHalvingSearcher,
    CustomSearcher,
    GridSearcher,
    OptunaSearcher,
    PbtSearcher,
    RandomSearcher,
    SearcherConfig,
    SingleSearcher,
)
from workflows.config.storage import (
    AzureStorage,
    CheckpointStorage,
    DirectoryStorage,
    GCSStorage,
    S3Storage,
    SharedFSStorage,
)

__all__ = [
    "AdaptiveAshaSearcher",
    "AsyncHalvingSearcher",
    "AzureStorage",
    "BindMount",
    "CategoricalHp",
    "CheckpointStorage",
    "ClusterDefaults",
    "ConfigError",
    "ConstHp",
    "CustomSearcher",
    "DirectoryStorage",
    "DoubleHp",
    "Environment",
    "ExperimentConfig",
    "GCSStorage",
    "GridSearcher",
    "Hyperparameter",
    "Hyperparameters",
    "IntHp",
    "LeafHp",
    "Length",
    "LengthUnit",
    "LogHp",
    "LogPolicy",
    "OptunaSearcher",
    "PbtSearcher",
    "Problem",
    "RandomSearcher",
    "Resources",
    "RetentionPolicy",
    "S3Storage",
    "SearcherConfig",
    "SharedFSStorage",
    "SingleSearcher",
    "Stage",
    "apply_overrides",
    "axis_size",
    "experiment_config_json_schema",
    "grid_size",
    "loose_numbers",
    "merge_configs",
    "parse_experiment_config",
    "read_config",
]
