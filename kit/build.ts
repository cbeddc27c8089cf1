/** What programs say of themselves. */
import packageJson from "../package.json" with { type: "json" };

/** Version of this build; all programs of one build carry the same. */
export const BUILD = packageJson.version;
