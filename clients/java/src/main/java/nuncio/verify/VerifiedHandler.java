package nuncio.verify;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;

/**
 * A handler of the JDK's own HTTP server. It verifies requests, and responds with 204, or with the error of a delivery that is not
 * verified or cannot be handled now.
 */
public final class VerifiedHandler implements HttpHandler {
  private static final int BODY_BYTES_MAX = 1_048_576;

  /** What is done with a delivery. */
  @FunctionalInterface
  public interface Receiver {
    /** If it throws, the response is an error, and the server sends the delivery again. */
    void receive(Delivery delivery, byte[] body) throws Exception;
  }

  private final Verifier verifier;
  private final Receiver receiver;

  /** Hands verified deliveries to a receiver. */
  public VerifiedHandler(Verifier verifier, Receiver receiver) {
    this.verifier = verifier;
    this.receiver = receiver;
  }

  @Override
  public void handle(HttpExchange exchange) throws IOException {
    try (exchange) {
      try {
        byte[] body = read(exchange.getRequestBody());
        receiver.receive(verifier.verify(exchange.getRequestHeaders(), body), body);
        exchange.sendResponseHeaders(204, -1);
      } catch (DeliveryException error) {
        respond(exchange, error.status(), error.toJson());
      } catch (IOException error) {
        throw error;
      } catch (Exception error) {
        System.getLogger(VerifiedHandler.class.getName()).log(System.Logger.Level.ERROR, "a delivery has failed", error);
        respond(exchange, 500, "{\"error\":\"internal\"}");
      }
    }
  }

  /** Reads a body to its end, so that the response arrives, but keeps none that is too large. */
  private static byte[] read(InputStream stream) throws IOException {
    byte[] body = stream.readNBytes(BODY_BYTES_MAX + 1);
    if (body.length <= BODY_BYTES_MAX) return body;
    stream.transferTo(OutputStream.nullOutputStream());
    throw new DeliveryException(Code.BODY_TOO_LARGE, "The body has more than " + BODY_BYTES_MAX + " bytes.");
  }

  private static void respond(HttpExchange exchange, int status, String json) throws IOException {
    byte[] text = Signature.bytesOf(json);
    exchange.getResponseHeaders().set("Content-Type", "application/json");
    exchange.sendResponseHeaders(status, text.length);
    exchange.getResponseBody().write(text);
  }
}
