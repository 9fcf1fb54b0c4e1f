package nuncio.verify;

/**
 * The names of headers that an operator can change. {@code /meta} shows them as {@code headers}. A name that is null is Nuncio's.
 */
public record HeaderNames(String event, String delivery, String signature, String sequence, String account) {
  /** Nuncio's own. */
  public static final HeaderNames NUNCIO = new HeaderNames(null, null, null, null, null);

  /** Those of GitHub. */
  public static final HeaderNames GITHUB =
      new HeaderNames("X-GitHub-Event", "X-GitHub-Delivery", "X-Hub-Signature-256", null, null);

  /** Those of Stripe. */
  public static final HeaderNames STRIPE = new HeaderNames(null, null, "Stripe-Signature", null, null);

  public HeaderNames {
    event = event == null ? "Nuncio-Event" : event;
    delivery = delivery == null ? "Nuncio-Delivery" : delivery;
    signature = signature == null ? "Nuncio-Signature" : signature;
    sequence = sequence == null ? "Nuncio-Sequence" : sequence;
    account = account == null ? "Nuncio-Account" : account;
  }
}
