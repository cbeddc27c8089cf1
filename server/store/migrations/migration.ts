/** One step of the database's history. */
export interface Migration {
  /** From 1, without gaps. */
  number: number;
  /** kebab-case, as in the file's name. */
  name: string;
  /** The statements, run together in one transaction. Never changed once released: the database remembers their checksum. */
  sql: string;
  /**
   * Whether programs that do not know this migration yet may start on a database that has it. Set it on a step that only
   * adds (expand); leave it out on one that takes something away (contract), which therefore ships a release later.
   */
  compatible?: boolean;
}
