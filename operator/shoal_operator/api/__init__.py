"""The custom resource: one typed model of its spec, and what is generated from it.

``model`` is the only place where a field is described. The CustomResourceDefinition (``crd``), the
reference page (``reference``), the parser (``parsing``) and the pods' environment variables all
read it. Pure: no I/O, no clock.
"""

GROUP = "serving.shoal.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
