"""The verdict: what ``check`` said of a bundle at a site. It travels in the plan, so that ``run`` knows it as well."""

from typing import Iterable, List, NamedTuple, Sequence

from deployer.contract.findings import ERROR, WARNING, Finding
from deployer.contract.json_records import Fields, Record

RUN, WARN, UNKNOWN, REFUSE = "RUN", "WARN", "UNKNOWN", "REFUSE"
#: The severity of a finding that says which facts are missing.
MISSING_FACTS = "unknown"

#: The code of the finding that facts are missing without which there is no plan.
NO_PLAN = "facts.plan"


class Checked(NamedTuple):
    """A verdict and what it follows from. ``accepted`` are codes that the stager takes upon them."""

    verdict: str
    findings: List[Finding]
    accepted: List[str]

    @property
    def against(self) -> List[Finding]:
        """Return the findings that made the verdict what it is: the errors of REFUSE, the unknown of UNKNOWN."""
        severity = {REFUSE: ERROR, UNKNOWN: MISSING_FACTS, WARN: WARNING}.get(self.verdict)
        return [item for item in self.findings if item.severity == severity and item.code not in self.accepted]

    @property
    def meaning(self) -> str:
        """Return what UNKNOWN means, in one line; nothing for the other verdicts, which mean what they are called."""
        if self.verdict != UNKNOWN:
            return ""
        if any(item.code == NO_PLAN for item in self.findings):
            return "not enough facts for a plan; without one, no job can run"
        return "not enough facts to decide; the job may still run, and push continues"

    def record(self) -> Record:
        """Return it as a JSON object."""
        findings = [item.record() for item in self.findings]
        return {"verdict": self.verdict, "findings": findings, "accepted": list(self.accepted)}

    @staticmethod
    def read(fields: Fields) -> "Checked":
        findings = [Finding.read(item) for item in fields.items("findings")]
        return Checked(fields.text("verdict"), findings, fields.texts("accepted"))


def judged(findings: Sequence[Finding], accepted: Iterable[str] = ()) -> Checked:
    """Return findings with the verdict that follows from them; one whose code was accepted counts as a warning."""
    codes = sorted(set(accepted))
    severities = {WARNING if item.code in codes else item.severity for item in findings}
    worst = ((ERROR, REFUSE), (MISSING_FACTS, UNKNOWN), (WARNING, WARN))
    verdict = next((verdict for severity, verdict in worst if severity in severities), RUN)
    return Checked(verdict, list(findings), codes)
