"""What runs in the next step: the queue, the budgets, admission, parts of prompts, drafts."""
