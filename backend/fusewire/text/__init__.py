"""Text alone: tokenizers, detokenizing, chat templates, JSON. No models, no tasks."""
