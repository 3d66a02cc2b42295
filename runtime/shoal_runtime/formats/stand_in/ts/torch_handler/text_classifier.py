"""Where TorchServe has its text classifier, which stands on a package that went with torch 2.3."""

raise ImportError(
    "TorchServe's text_classifier needs torchtext, of which no version runs with this torch: let the archive's own"
    " handler read the vocabulary (TorchServe's examples with transformers do)"
)
