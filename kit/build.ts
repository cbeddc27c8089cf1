/** What programs say of themselves. */
import packageJson from "../package.json" with { type: "json" };

/** Written by `npm run build:hand-agent` into a program that travels alone: what its file's digest begins with. */
declare const TENDON_BUILD_DIGEST: string | undefined;

/** Version of this build; all programs of one build carry the same. One that travels alone adds which file it is. */
export const BUILD =
  typeof TENDON_BUILD_DIGEST === "string"
    ? `${packageJson.version}+${TENDON_BUILD_DIGEST}`
    : packageJson.version;
