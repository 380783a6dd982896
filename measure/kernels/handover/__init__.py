"""The hand-over between a GPU and the CPU router."""

SOURCES = ("handover/mailbox.py", "handover/mailbox.cu")
GPU_TABLES = dict.fromkeys(("publish", "await", "summary_d2h"), SOURCES)
