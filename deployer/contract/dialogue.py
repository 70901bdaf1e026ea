"""What the laptop and the site half say to each other over ssh, beside what a person reads."""

#: Begins a line that a program reads: all else that comes may be noise of a login shell.
ANSWER = "deployer-answer:"
#: The environment of a command of the site half that the laptop started; each is "1" or not there. Somebody looks on;
#: that person can answer; the name and number of a job are announced in a line of their own.
TERMINAL = "DEPLOYER_TERMINAL"
ANSWERS = "DEPLOYER_ANSWERS"
ANNOUNCE = "DEPLOYER_ANNOUNCE"
#: Progress is told in lines on standard error: bytes done, bytes in all.
PROGRESS = "DEPLOYER_PROGRESS"
PROGRESS_LINE = "deployer-progress:"
