/** The command or call cannot be done on this hand; `reason` is for programs, the message for people. */
export class HandRefusal extends Error {
  override readonly name = "HandRefusal";
  readonly reason: string;

  constructor(reason: string, message: string) {
    super(message);
    this.reason = reason;
  }
}
