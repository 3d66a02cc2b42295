"""The custom resource ``InferenceService``: what users write. Its fields are declared here and nowhere else."""

GROUP = "serving.shoal.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
