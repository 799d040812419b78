"""Code that reads machine code or writes into another library's memory."""
