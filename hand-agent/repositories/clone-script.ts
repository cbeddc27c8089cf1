/** What is run in a hand to clone a repository, with the hand's own git. */

/** Exit codes by which the script says how far it came. */
export const CLONE_EXITS = { noGit: 40, notEmpty: 41, notCloned: 42, notCheckedOut: 43 } as const;

/**
 * Arguments: URL, path, branch, tag, commit (the first of the three that is not empty, from behind, counts), and a bundle
 * whose objects need not come over the network; empty for none. Writes the commit that is checked out, if there is one, and
 * a line that changes when what was cloned does. What it made is gone when it fails.
 *
 * Checked out apart from cloning, so that the two are told apart. LFS is set up for a repository that uses it, where the hand
 * has it.
 */
export const CLONE_SCRIPT = `
url=$1 path=$2 branch=$3 tag=$4 commit=$5 seed=$6
drop_seed() { [ -z "$seed" ] || rm -rf "$seed" "$seed.git"; }
stop() { drop_seed; exit "$1"; }
fail() { cd / && rm -rf "$path"; stop "$1"; }
command -v git >/dev/null 2>&1 || stop ${CLONE_EXITS.noGit}
[ -z "$(ls -A "$path" 2>/dev/null)" ] && [ ! -f "$path" ] || stop ${CLONE_EXITS.notEmpty}
set -- --quiet --no-checkout
if [ -n "$seed" ]; then
  git init --quiet --bare "$seed.git" >&2 && git -C "$seed.git" fetch --quiet "$seed" '+refs/*:refs/*' >&2 &&
    set -- "$@" --reference-if-able "$seed.git" --dissociate
fi
mkdir -p "$(dirname "$path")" && git clone "$@" -- "$url" "$path" >&2 || fail ${CLONE_EXITS.notCloned}
drop_seed
cd "$path" || fail ${CLONE_EXITS.notCloned}
at=HEAD
if [ -n "$commit" ]; then
  at=$commit
  git cat-file -e "$commit^{commit}" 2>/dev/null || git fetch --quiet origin "$commit" >&2 || fail ${CLONE_EXITS.notCheckedOut}
elif [ -n "$tag" ]; then at=refs/tags/$tag
elif [ -n "$branch" ]; then at=refs/remotes/origin/$branch
fi
if git rev-parse --quiet --verify "$at^{commit}" >/dev/null; then
  if git grep -q filter=lfs "$at" -- ':(glob)**/.gitattributes' && git lfs version >/dev/null 2>&1; then
    git lfs install --local >/dev/null 2>&1
  fi
  if [ -n "$commit$tag" ]; then set -- --detach "$at"
  elif [ -n "$branch" ]; then set -- -B "$branch" --track "origin/$branch"
  else set -- --force; fi
  git checkout --quiet "$@" >&2 || fail ${CLONE_EXITS.notCheckedOut}
elif [ "$at" != HEAD ]; then
  echo "the repository has no branch or tag $branch$tag" >&2
  fail ${CLONE_EXITS.notCheckedOut}
fi
git rev-parse --quiet --verify HEAD || echo
git for-each-ref --format='%(objectname) %(refname)' refs/remotes/origin refs/tags | git hash-object --stdin
`;

/** Writes a bundle of all that was cloned to its output. */
export const BUNDLE_SCRIPT = `cd "$1" && exec git bundle create --quiet - --remotes=origin --tags`;

/** Removes what a clone that was cut off has left: a directory with a repository in it, and the bundle. */
export const REMOVE_SCRIPT = `rm -rf "$2" "$2.git"; [ ! -e "$1/.git" ] || rm -rf "$1"`;
