module bench;
  reg clk = 0, rst = 1; wire [15:0] out [0:3];
  genvar g;
  generate for (g = 0; g < 4; g = g + 1) begin : each cpu one(clk, rst, out[g]); end endgenerate
  always #1 clk = ~clk;
  initial begin #4 rst = 0; #700000 $display("%h", out[0]); $finish; end
endmodule
