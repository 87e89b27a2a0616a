"""`aha audit`: one method on one model and data set, judged part by part against thresholds that a team sets.

The folder is called after what is done, since `aha.audit` is the function.
"""
