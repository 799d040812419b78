"""What Ascend devices' profilers wrote (CANN, torch_npu, MindSpore): text files or databases → frames → tables."""
