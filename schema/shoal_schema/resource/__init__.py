"""The custom resources ``InferenceService``, ``InferenceGraph`` and ``BatchInference``.

Their fields are declared here and nowhere else.
"""

GROUP = "serving.shoal.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
BATCH_KIND = "BatchInference"
BATCH_PLURAL = "batchinferences"
GRAPH_KIND = "InferenceGraph"
GRAPH_PLURAL = "inferencegraphs"
