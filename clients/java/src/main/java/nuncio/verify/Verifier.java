package nuncio.verify;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;

/**
 * Verifies deliveries: {@code Verifier.builder().secret("whsec_…").build().verify(headers, body)}. It is immutable, and threads can
 * share it.
 */
public final class Verifier {
  private final List<String> secrets;
  private final PublicKeys publicKeys;
  private final Duration tolerance;
  private final HeaderNames headerNames;

  private Verifier(Builder builder) {
    secrets = new ArrayList<>(builder.secrets);
    publicKeys = builder.publicKeys;
    tolerance = builder.tolerance;
    headerNames = builder.headerNames;
  }

  /** Begins with no secret, no keys, a tolerance of five minutes and Nuncio's names of headers. */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Verifies a delivery.
   *
   * @param headers all values of each header, with names in any case
   * @param body the bytes of the request as they were sent
   * @throws DeliveryException if the delivery is not verified; its code says why
   */
  public Delivery verify(Map<String, ? extends Collection<String>> headers, byte[] body) {
    Map<String, List<String>> values = new TreeMap<>();
    headers.forEach(
        (name, several) -> {
          // Some clients have the status line without a name.
          if (name == null || several == null) return;
          values.computeIfAbsent(name.toLowerCase(Locale.ROOT), key -> new ArrayList<>()).addAll(several);
        });
    return verify(
        name -> {
          List<String> found = values.getOrDefault(name.toLowerCase(Locale.ROOT), List.of());
          // Values of a repeated header are joined by a comma, as HTTP defines it.
          return found.isEmpty() ? null : String.join(", ", found);
        },
        body);
  }

  /**
   * Verifies a delivery.
   *
   * @param header returns the value of a header, or null, such as {@code request::getHeader} of a servlet. It must find names in any
   *     case. If it returns the first of several values, repeated headers are not noticed.
   * @param body the bytes of the request as they were sent
   * @throws DeliveryException if the delivery is not verified; its code says why
   */
  public Delivery verify(Function<String, String> header, byte[] body) {
    if (body == null) {
      throw new DeliveryException(Code.NO_BODY, "There is no body. Pass the bytes of the request.");
    }
    Signature signature = Signature.read(header, headerNames, publicKeys != null);
    if (signature.timestamp() != null) checkAge(signature.timestamp());
    if (signature.format() == Signature.Format.ED25519) PublicKeys.check(signature, body, publicKeys);
    else Secrets.check(signature, body, secrets);
    String kind = Signature.readHeader(header, headerNames.event(), Signature.IDENTIFIER);
    String sequence = Signature.readHeader(header, headerNames.sequence(), Signature.SEQUENCE);
    String account = headerNames.account();
    return new Delivery(
        signature.id(),
        kind,
        Long.parseLong(sequence),
        signature.timestamp(),
        header.apply(account) == null ? null : Signature.readHeader(header, account, Signature.IDENTIFIER));
  }

  private void checkAge(long timestamp) {
    double age = System.currentTimeMillis() / 1_000.0 - timestamp;
    if (Math.abs(age) <= tolerance.toNanos() / 1e9) return;
    throw new DeliveryException(
        age > 0 ? Code.TOO_OLD : Code.TOO_NEW,
        "The delivery was signed "
            + Math.round(Math.abs(age))
            + " seconds "
            + (age > 0 ? "ago" : "in the future")
            + ", by this machine's clock.");
  }

  /** The options of a verifier. */
  public static final class Builder {
    private final List<String> secrets = new ArrayList<>();
    private PublicKeys publicKeys;
    private Duration tolerance = Duration.ofMinutes(5);
    private HeaderNames headerNames = HeaderNames.NUNCIO;

    private Builder() {}

    /** The subscription's secret, {@code whsec_…}. Of several, one must match: during a rotation, or of several subscriptions. */
    public Builder secret(String secret) {
      secrets.add(secret);
      return this;
    }

    /** For {@code signature: "ed25519"}. */
    public Builder publicKeys(PublicKeys keys) {
      publicKeys = keys;
      return this;
    }

    /** How far the time of the signature may be from this machine's clock, at most 292 years. */
    public Builder tolerance(Duration duration) {
      if (duration.isNegative()) throw new IllegalArgumentException("tolerance must not be negative");
      duration.toNanos();
      tolerance = duration;
      return this;
    }

    /** The names of headers, if the operator has changed them. */
    public Builder headerNames(HeaderNames names) {
      headerNames = names;
      return this;
    }

    /** The verifier. */
    public Verifier build() {
      return new Verifier(this);
    }
  }
}
