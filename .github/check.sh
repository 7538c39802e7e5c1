#!/usr/bin/env bash
# The step of action.yml: RUN against BASELINE; files in REPORT, a summary on the job's page. Exits as gpuscope does.
set -uo pipefail
mkdir -p "$REPORT"
gpuscope analyze "$RUN" --json --html "$REPORT/report.html" --force > "$REPORT/run.json" || exit $?
options=(--baseline "$BASELINE" --fail-on "$FAIL_ON")
[ -n "${FAIL_ON_FINDING:-}" ] && options+=(--fail-on-finding "$FAIL_ON_FINDING")
gpuscope check "$REPORT/run.json" "${options[@]}" --no-github --json > "$REPORT/check.json"
gpuscope check "$REPORT/run.json" "${options[@]}" --github --junit "$REPORT/junit.xml" --force | tee "$REPORT/check.txt"
status=${PIPESTATUS[0]}
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  { echo '```'; cat "$REPORT/check.txt"; echo '```'; } >> "$GITHUB_STEP_SUMMARY"
fi
exit "$status"
