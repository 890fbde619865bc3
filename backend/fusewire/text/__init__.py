"""Everything about text that needs neither models nor tasks: tokenizers, detokenisation, chat
templates, JSON."""
