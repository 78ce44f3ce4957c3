# Sourced by .ci/run: what has changed since the last commit that passed.

# The ancestor of HEAD nearest to it, of the commits in these files; nothing where there is none.
last_green() {
  local commit
  for commit in $(cat "$@" 2>/dev/null); do
    if git merge-base --is-ancestor "$commit" HEAD 2>/dev/null; then echo "$(git rev-list --count "$commit..HEAD") $commit"; fi
  done | sort -n | sed -n '1s/.* //p'
}

# True if a file of these paths differs from commit $green, comments of C++ apart. Always true without $green, or with $everything = 1.
changed() {
  local name
  if ((everything)) || [[ -z $green ]]; then return 0; fi
  while IFS= read -r name; do
    [[ $(text_at "$green" "$name") == "$(text_at HEAD "$name")" ]] || return 0
  done < <(git diff --name-only "$green" HEAD -- "$@")
  return 1
}

# A file's text in a commit; C++ without comments.
text_at() {
  case $2 in
    *.cpp | *.h | *.cu | *.cuh) git show "$1:$2" 2>/dev/null | g++ -fpreprocessed -dD -E -P -x c++ - 2>/dev/null ;;
    *) git show "$1:$2" 2>/dev/null ;;
  esac
}
