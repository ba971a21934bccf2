"""Predictions for others: a model behind HTTP (`dekrr serve`), as an ONNX graph, and as an MLflow model."""
