"""What may still change: processing a data set by many workers, for example for inference."""

from determined.pytorch.experimental._torch_batch_process import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    torch_batch_process,
)

__all__ = ["TorchBatchProcessor", "TorchBatchProcessorContext", "torch_batch_process"]
