package nuncio.verify;

/** The delivery is not verified, or cannot be handled now. Messages contain no secret and no valid signature. */
public final class DeliveryException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final Code code;

  DeliveryException(Code code, String message) {
    this(code, message, null);
  }

  DeliveryException(Code code, String message, Throwable cause) {
    super(message, cause);
    this.code = code;
  }

  /** Why. */
  public Code code() {
    return code;
  }

  /** The HTTP status of the response. */
  public int status() {
    return code.status();
  }

  /** The body of the response, as JSON. The server shows it in the delivery's log. */
  public String toJson() {
    return "{\"error\":" + Json.write(code.toString()) + ",\"message\":" + Json.write(getMessage()) + "}";
  }
}
