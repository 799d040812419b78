#!/usr/bin/env bash
# Compares COMMAND in the working tree with COMMAND in the revision AGAINST. The result goes into the job's summary and,
# if COMMENT_ON is the number of a pull request, into one comment there. Ends with the exit code of the comparison.
set -euo pipefail

if ! git rev-parse --quiet --verify "$AGAINST^{commit}" >/dev/null; then # a checkout of one commit does not have it
  git fetch --quiet --depth=1 origin "$AGAINST"
  AGAINST=$(git rev-parse FETCH_HEAD)
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
words=(compare --turns "$COMMAND" --against "$AGAINST" --json "$scratch/found.json")
if [ -n "$FAIL_ON" ]; then
  words+=(--fail-on "$FAIL_ON")
fi
code=0
# shellcheck disable=SC2086 # the further arguments are words
NO_COLOR=1 COLUMNS=100 stepscope "${words[@]}" ${ARGUMENTS:-} >"$scratch/screen" 2>"$scratch/errors" || code=$?
cat "$scratch/screen"
cat "$scratch/errors" >&2

# Indented lines are code, whatever is in them: names of operators come from the program.
{
  printf '### stepscope: `%s` against the base\n\n' "${COMMAND//[\`$'\n']/ }"
  if [ -f "$scratch/found.json" ]; then
    sed 's/^/    /' "$scratch/screen"
  else
    printf 'There was no comparison (exit code %s).\n\n' "$code"
    tail -n 5 "$scratch/errors" | sed 's/^/    /'
  fi
} >"$scratch/summary"
cat "$scratch/summary" >>"$GITHUB_STEP_SUMMARY"
if [ -f "$scratch/found.json" ]; then
  verdict=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"])' "$scratch/found.json")
  echo "verdict=$verdict" >>"$GITHUB_OUTPUT"
fi

comment() {
  local mark id comments="repos/$GITHUB_REPOSITORY/issues"
  mark="<!-- stepscope compare $(printf %s "$COMMAND" | sha256sum | cut -c1-12) -->" # one comment for each command
  { echo "$mark"; cat "$scratch/summary"; } >"$scratch/comment"
  id=$(gh api --paginate "$comments/$COMMENT_ON/comments" --jq ".[] | select(.body | startswith(\"$mark\")) | .id" | sed -n 1p) || return
  if [ -n "$id" ]; then
    gh api --silent --method PATCH "$comments/comments/$id" --field "body=@$scratch/comment"
  else
    gh api --silent --method POST "$comments/$COMMENT_ON/comments" --field "body=@$scratch/comment"
  fi
}

if [ -n "$COMMENT_ON" ] && ! comment; then
  echo "::warning::The comparison is in the summary only: the comment could not be written. Does the token have pull-requests: write?"
fi
exit "$code"
