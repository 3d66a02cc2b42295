"""Placeholder for TorchServe's `text_classifier`, which requires the discontinued torchtext."""

raise ImportError(
    "TorchServe's text_classifier requires torchtext, which does not run with this version of torch. Read the"
    " vocabulary in the archive's own handler, as TorchServe's examples with transformers do"
)
