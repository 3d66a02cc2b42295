"""Fit a scikit-learn pipeline and save it as model.skops, which `shoal serve` loads.

The pipeline classifies irises. Change this script, and run it again: `python train.py`.
"""

from pathlib import Path

from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skops.io import dump

FILE = Path(__file__).with_name("model.skops")

iris = load_iris()
pipeline = make_pipeline(StandardScaler(), LogisticRegression())
pipeline.fit(iris.data, iris.target_names[iris.target])
# Not a pickle, which could run any code when it is loaded.
dump(pipeline, FILE)
