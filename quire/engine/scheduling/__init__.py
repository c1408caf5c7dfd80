"""The choice of the next step: queue, budgets, admission, parts of prompts, drafts."""
