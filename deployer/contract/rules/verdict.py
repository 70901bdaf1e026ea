"""The verdict of ``check`` about a bundle at a site. The plan carries it to ``run``."""

from typing import Container, Iterable, List, NamedTuple, Sequence

from deployer import __version__
from deployer.contract.rules.findings import ERROR, WARNING, Finding

RUN, WARN, UNKNOWN, REFUSE = "RUN", "WARN", "UNKNOWN", "REFUSE"
#: The severity of a finding about missing facts.
MISSING_FACTS = "unknown"

#: The code of the finding about missing facts without which no plan can be made.
NO_PLAN = "facts.plan"


class Checked(NamedTuple):
    """A verdict and its reasons.

    Attributes:
        verdict: RUN, WARN, UNKNOWN or REFUSE.
        findings: all findings.
        accepted: codes that were accepted on the laptop.
        deployer: the version of deployer that made it.
    """

    verdict: str
    findings: List[Finding]
    accepted: List[str]
    deployer: str = ""

    @property
    def against(self) -> List[Finding]:
        """Return the findings that led to the verdict: the errors for REFUSE, the missing facts for UNKNOWN."""
        severity = {REFUSE: ERROR, UNKNOWN: MISSING_FACTS, WARN: WARNING}.get(self.verdict)
        return [item for item in self.findings if item.severity == severity and item.code not in self.accepted]

    @property
    def said(self) -> str:
        """Return the verdict, with the jobs to which it applies unless it applies to all."""
        jobs = {item.job for item in self.against}
        of_jobs = " for job " + ", ".join(sorted(jobs)) if jobs and "" not in jobs else ""
        return self.verdict + of_jobs

    @property
    def meaning(self) -> str:
        """Return in one line what UNKNOWN means; empty for the other verdicts, which need no explanation."""
        if self.verdict != UNKNOWN:
            return ""
        if any(item.code == NO_PLAN for item in self.findings):
            return "not enough facts for a plan; without one, no job can run"
        return "not enough facts to decide; the job may still run, and push continues"

    @property
    def by(self) -> str:
        """Return the other deployer version that made the verdict, to follow it in a text; empty for this version."""
        return "" if self.deployer == __version__ else f" (by deployer {self.deployer}; this is {__version__})"

    def of_job(self, name: str) -> "Checked":
        """Return the verdict on one job, without findings that are only about other jobs."""
        return self._with([item for item in self.findings if item.job in ("", name)])

    def without(self, codes: Container[str]) -> "Checked":
        """Return the verdict without the findings of these codes."""
        return self._with([item for item in self.findings if item.code not in codes])

    def _with(self, findings: List[Finding]) -> "Checked":
        if len(findings) == len(self.findings):
            return self
        return judged(findings, self.accepted)._replace(deployer=self.deployer)


def judged(findings: Sequence[Finding], accepted: Iterable[str] = ()) -> Checked:
    """Return findings with their resulting verdict; a finding with an accepted code counts as a warning."""
    codes = sorted(set(accepted))
    severities = {WARNING if item.code in codes else item.severity for item in findings}
    worst = ((ERROR, REFUSE), (MISSING_FACTS, UNKNOWN), (WARNING, WARN))
    verdict = next((verdict for severity, verdict in worst if severity in severities), RUN)
    return Checked(verdict, list(findings), codes, __version__)
