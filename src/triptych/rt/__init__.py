"""What ``triptych rt`` tells: what the machine offers in real time, how late it wakes a thread, what helps."""
