/** How packages are installed, by manager in the order in which environments have them (pure). */
import type { Packages } from "../proto/gen/tendon/v1/environment_pb.js";

const COMMANDS: readonly [keyof Omit<Packages, "$typeName" | "$unknown">, (names: string) => string][] = [
  [
    "apt",
    (names) =>
      `apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${names} && rm -rf /var/lib/apt/lists/*`,
  ],
  ["cargo", (names) => `cargo install --root /usr/local ${names}`],
  ["gem", (names) => `gem install --no-document ${names}`],
  ["go", (names) => `for each in ${names}; do GOBIN=/usr/local/bin go install "$each"; done`],
  ["npm", (names) => `npm install --global ${names}`],
  // An image is the hand's own: there is no distribution to keep whole.
  ["pip", (names) => `PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir ${names}`],
];

/** Empty for none. */
export function packageCommands(packages: Packages | undefined): string {
  if (packages === undefined) return "";
  const commands = COMMANDS.flatMap(([manager, command]) => {
    const names = packages[manager].map((name) =>
      quoted(manager === "go" && !name.includes("@") ? `${name}@latest` : name),
    );
    return names.length === 0 ? [] : [command(names.join(" "))];
  });
  return commands.length === 0 ? "" : ["set -e", ...commands].join("\n");
}

/** Hosts from which these programs install by default. */
export const PACKAGE_HOSTS: readonly string[] = [
  ...[
    "deb.debian.org",
    "security.debian.org",
    "archive.ubuntu.com",
    "security.ubuntu.com",
    "ports.ubuntu.com",
  ],
  ...["crates.io", "index.crates.io", "static.crates.io"],
  ...["rubygems.org", "index.rubygems.org"],
  ...["proxy.golang.org", "sum.golang.org", "storage.googleapis.com"],
  ...["registry.npmjs.org", "pypi.org", "files.pythonhosted.org"],
];

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
