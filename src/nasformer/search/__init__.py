"""Search: find the best architecture of a space within a budget, resumable at any moment. No torch here."""
