"""Model export: safetensors, standalone Python, torch.export, ONNX."""
