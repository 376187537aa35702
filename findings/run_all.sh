#!/usr/bin/env bash
# Run all findings, one after the other, and print a table: `make findings`, or findings/run_all.sh NAME...
set -u
cd "$(dirname "$0")"
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for script in *.sh; do [ "$script" = run_all.sh ] || names+=("${script%.sh}"); done
fi
status=0
table=""
for name in "${names[@]}"; do
    printf '== %s\n' "$name"
    began=$SECONDS
    if "./$name.sh"; then result=holds; else result=CHANGED; status=1; fi
    table+=$(printf '%-48s %-8s %5d s' "$name" "$result" $((SECONDS - began)))$'\n'
done
printf '\n%-48s %-8s %7s\n%s' finding result time "$table"
exit "$status"
