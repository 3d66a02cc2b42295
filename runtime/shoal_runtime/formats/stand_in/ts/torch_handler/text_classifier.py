"""Placeholder of TorchServe's text classifier, which requires a package that ended with torch 2.3."""

raise ImportError(
    "TorchServe's text_classifier requires torchtext, which does not run with this version of torch. Read the"
    " vocabulary in the archive's own handler, as TorchServe's examples with transformers do"
)
