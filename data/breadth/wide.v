// Eight lanes of arithmetic, for a synthesis.
module wide(input clk, input [127:0] a, input [127:0] b, output reg [255:0] y);
  genvar i;
  generate for (i = 0; i < 8; i = i + 1) begin : lane
    wire [15:0] p = a[16*i +: 16], q = b[16*i +: 16];
    always @(posedge clk) y[32*i +: 32] <= (p * q) + {q, p} - (y[32*i +: 32] >> p[2:0]);
  end endgenerate
endmodule
