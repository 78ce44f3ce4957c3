#include "app/commands/completion.h"

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

// Bash splits words at '=' and ':' (COMP_WORDBREAKS) and replaces only the last part.
constexpr const char* kBash = R"sh(# Completion of kvlab. Load it with: source <(kvlab completion bash)
_kvlab() {
  local rest=${COMP_LINE:0:COMP_POINT} words=() blank word line i files=''
  for ((i = 0; i <= COMP_CWORD; i++)); do
    blank=${rest%%[![:space:]]*}
    rest=${rest#"$blank"}
    word=${COMP_WORDS[i]}
    if ((i == COMP_CWORD)); then word=$rest; else rest=${rest#"$word"}; fi
    if [[ -n $blank || $i == 0 ]]; then words+=("$word"); else words[${#words[@]}-1]+=$word; fi
  done
  local current=${words[${#words[@]}-1]} breaks=${COMP_WORDBREAKS//[^:=]/} after
  after=$current
  if [[ -n $breaks ]]; then after=${current##*[$breaks]}; fi
  COMPREPLY=()
  while IFS= read -r line; do
    word=${line%%$'\t'*}
    if [[ $line == :* ]]; then
      files=${line#:}
    elif [[ $word == "$current"* ]]; then
      COMPREPLY+=("${word#"${current%"$after"}"}")
    fi
  done < <("${words[0]/#\~/$HOME}" complete -- "${words[@]:1}" 2>/dev/null || printf ':files\n')
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]]; then compopt -o nospace 2>/dev/null; fi
  if [[ -n $files ]]; then
    compopt -o filenames 2>/dev/null
    while IFS= read -r word; do
      if [[ $files == files || -d ${word/#\~/$HOME} || ( $files == yaml && $word == *.y?(a)ml ) ]]; then COMPREPLY+=("$word"); fi
    done < <(compgen -f -- "$after")
  fi
}
complete -F _kvlab kvlab ./kvlab
)sh";

// May also be `_kvlab` in a folder of $fpath.
constexpr const char* kZsh = R"sh(#compdef kvlab
# Completion of kvlab. Load it with: source <(kvlab completion zsh)
_kvlab() {
  local program=${(Q)words[1]} line item files='' found=1
  local -a closed open
  while IFS= read -r line; do
    item=${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}
    case $line in
      :*) files=${line#:} ;;
      *[=./]$'\t'*) open+=("$item") ;;
      *) closed+=("$item") ;;
    esac
  done < <("${program/#\~/$HOME}" complete -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null || print :files)
  _describe -t words word closed && found=0
  _describe -t words word open -S '' && found=0
  if [[ -n $files && $PREFIX == --*=* ]]; then compset -P '*='; fi
  case $files in
    files) _files && found=0 ;;
    folders) _files -/ && found=0 ;;
    yaml) _files -g '*.(yaml|yml)(-.)' && found=0 ;;
  esac
  return found
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
if [[ $funcstack[1] == _kvlab ]]; then _kvlab "$@"; else compdef _kvlab kvlab; fi
)sh";

constexpr const char* kFish = R"sh(# Completion of kvlab. Load it with: kvlab completion fish | source
function __kvlab_paths  # KIND BEGIN: paths of that kind that begin so
  switch $argv[1]
    case files
      __fish_complete_path $argv[2]
    case folders
      __fish_complete_directories $argv[2] ''
    case yaml
      __fish_complete_directories $argv[2] ''
      for path in $argv[2]*.yaml $argv[2]*.yml
        printf '%s\n' $path
      end
  end
end

function __kvlab_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l program (string replace -r -- '^~' $HOME $words[1])
  set -e words[1]
  set -l option (string match -r -- '^--[^=]*=' "$current")
  set -l lines ($program complete -- $words "$current" 2>/dev/null; or echo :files)
  for line in $lines
    if not string match -q -- ':*' $line
      printf '%s\n' $line
      continue
    end
    for path in (__kvlab_paths (string sub -s 2 -- $line) (string replace -- "$option" '' "$current"))
      printf '%s%s\n' "$option" $path
    end
  end
end
complete -c kvlab -f -a '(__kvlab_complete)'
)sh";

}  // namespace

const std::vector<std::string>& completion_shells() {
  static const std::vector<std::string> shells = {"bash", "zsh", "fish"};
  return shells;
}

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  if (shell == "fish") return kFish;
  throw InputError("unknown shell '" + shell + "'" + suggestion(shell, completion_shells()));
}

}  // namespace kvlab
