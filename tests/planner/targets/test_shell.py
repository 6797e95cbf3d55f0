"""Shell scripts are followed as bash runs them, and what only a run could tell is marked."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from meshwright.planner.targets.shell.script import follow
from meshwright.planner.targets.shell.values import marks, shown

# Scripts whose words bash itself can print: every `show` prints one argument per line.
SCRIPTS = {
    "quotes": """A="x  y"; B='$A'; show $A "$A" $B "${A}z" a\\ b "" '' end""",
    "defaults": "N=3; show ${N:-1} ${M:-2} ${M-4} ${N:+set} ${E:=7} $E",
    "arrays": 'A=(one "two three"); A+=(--x "4"); show "${A[@]}" ${A[1]} ${#A[@]} "${A[0]}"; B=(); show "${B[@]}" end',
    "arithmetic": "G=8; N=4; show $((G*N)) $(( (G + 1) / 2 )) $((17 % 5)) $(( $G - -2 )) $((2 ** 5))",
    "choices": "T=2; U=1; show $(( ($T > 1) ? 1 : 0 )) $((U > 1 ? 5 : U + 7)) $(( 2 * (T == 2 ? 3 : 4) ))",
    "cut": "F=/a/b/c.tar.gz; show ${F##*/} ${F%.gz} ${F%%.*} ${F#/} ${F/a/x} ${F//c/y} ${F:1:3} ${#F}",
    "if": 'if [ -z "$X" ]; then X=5; elif [ 1 = 1 ]; then X=6; else X=7; fi; [[ $X -gt 4 && $X != 6 ]] && show big $X',
    "case": "case 8B in 1*) S=1;; 7B|8B) S=2 ;; *) S=3;; esac; show $S",
    "loops": 'for i in 1 2 3; do T="$T $i"; done; n=0; while [ $n -lt 3 ]; do n=$((n+1)); done; show $T $n',
    "braces": 'for i in {3..1} {1..9..4} {08..10}; do show $i; done; show x{a,b}y {1..2}{c,d} "{1..2}" {x} {-1..1..0}',
    "functions": 'f() { local a=$1; shift; show "$a" "$@" $#; }; f one two "three four"',
    "tests without their bracket": 'if [ 1 -eq 1]; then show a; else show b; fi; [ x = x && show c || show d',
    "printed by functions": 'f() { echo --a $1; if [ $1 -gt 1 ]; then echo --b; else echo --c; fi; '
                            '[[ $1 = 2 ]] && echo "2 3"; }; g() { echo $(f $1) --d; }; show $(f 2) $(f 1) "$(g 1)"',
    "eval": "cmd='show a \"b c\"'; eval $cmd; eval \"show $HOMELESS d\"",
    "a shell of its own": "A=1; export B=2; C=3 bash -c 'show $A $B $C end; B=9'; show $A $B; "
                          "bash -c 'show $1 $2 end' x one two",
    "arrays by name": 'declare -A L; L=(["350M"]=24 [7.5B]=36); S=7.5B; L[x]=3; show ${L[$S]} "${L["350M"]}" ${L[x]}; '
                      '[ -n "${L[$S]}" ] && show yes; [ -n "${L[y]}" ] || show no',
    "quotes in a document": "bash <<EOF\nshow 'a' \"b c\"; bash -c \"show \\\"d e\\\" \\$HOMELESS f\"\nEOF",
    "lines that are read": 'A=1; while read N; do A=2; B=3; done < /dev/null; show end',
    "shell in a string": "bash -c \"show inner '1 2'\"; sh -c 'show plain'",
    "lines": "show a \\\n  b \\\n  c # comment\nA=\"\n  --x 1 \\\n  --y 2\n\"\nshow $A",
    "set": "set -- p q r; shift; show $1 $# $@",
    "echo": "show $(echo hello   world) `echo again` $(expr 3 + 4)",
    "getopts": ('set -- -a 3 -bd -c5 x; while getopts ":a:bc:d" o; do case $o in a) A=$OPTARG;; b) B=1;; d) D=2;; '
                'c) C=$OPTARG;; esac; done; shift $((OPTIND-1)); show $A $B $C $D $OPTIND $1'),
    "tests that print": ("F=true; show $( [ $F = true ] && echo --on ) $( [ $F = no ] && echo --x ) "
                         "$([[ $F == no ]] && echo a || echo b) $([ 1 = 1 ] && [ 2 = 2 ] && echo c || echo d) end"),
    "negation": "if ! [ 1 = 2 ]; then show yes; fi; [ 1 = 2 ] || show or",
    "test": "if [[ 8B == *B ]]; then show match; fi; if ((3 > 2)); then show three; fi; unset Q; show ${Q:-none}",
    "exports": "export A=1 B=2; declare -a C=(x y); show $A $B ${C[@]}",
    "group": "{ A=1; show $A; }; (show sub)",
}


def followed(script: str) -> list[list[str]]:
    return [list(command.words[1:]) for command in follow(script).commands if command.words[0] == "show"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_of_bash(name: str) -> None:
    if (bash := shutil.which("bash")) is None:
        pytest.skip("there is no bash")
    show = 'show() { printf "(\\n"; for w in "$@"; do printf "%s\\n" "$w"; done; printf ")\\n"; }\nexport -f show\n'
    script = SCRIPTS[name].replace("sh -c", "bash -c")
    printed = subprocess.run([bash, "-c", show + script], capture_output=True, text=True, check=False).stdout
    expected: list[list[str]] = []
    for line in printed.splitlines():
        if line == "(":
            expected.append([])
        elif line != ")":
            expected[-1].append(line)
    assert expected
    found = [[word for word in words if not marks(word)] for words in followed(script)]
    assert found == expected


def test_what_only_a_run_can_tell_is_marked() -> None:
    found = follow('T=$(date); if [ $1 = x ]; then O="--a 1 --b"; else O="--a 1 --c"; fi; show $T ${2:-4} $O')
    words = found.commands[0].words
    assert [shown(word) for word in words] == ["show", "$T", "4", "--a", "1", "$O by $1"]
    assert found.choices["$O by $1"] == {"--b", "--c"}


def test_a_here_document_and_a_sourced_file() -> None:
    script = 'Z=2\ncat <<EOT > ds.json\n{ "stage": $Z }\nEOT\nsource ./more.sh\nshow $M'
    found = follow(script, beside={"more.sh": "M=8\n"})
    assert found.files == {"ds.json": '{ "stage": 2 }\n'}
    assert found.commands[-1].words == ("show", "8")
    assert follow("source other.sh").not_there == {"other.sh": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [("fi; done\nshow a", ["a"]), ("if [ 1 = 1 ]; then\nshow b", ["b"]), ("x=(1 2\nshow", None),
     ("show <Path> c", ["<Path>", "c"]), ("while :; do :; done; show d", ["d"]), ("f() { f; }; f; show e", ["e"])],
)  # fmt: skip
def test_text_that_is_no_shell_stops_nothing(text: str, words: list[str] | None) -> None:
    found = followed(text)
    assert words is None or found[-1] == words


def test_a_loop_over_lines_that_are_read() -> None:
    """Its body may run any number of times. Its commands are found, and variables that it changes are not known."""
    script = 'N=0\nwhile IFS= read -r H; do N=$((N+1)); K=4; show "$H" $K; done < hosts\nshow $N'
    inside, after = follow(script).commands
    assert (shown(inside.words[1]), inside.words[2]) == ("$H", "4")
    assert marks(after.words[1])
