// A small processor with a multiplier, and a bench that runs a program on it.
module cpu(input clk, input rst, output reg [15:0] out);
  reg [7:0] pc; reg [15:0] regs [0:7]; reg [15:0] mem [0:255];
  wire [15:0] ins = rom(pc);
  wire [15:0] a = regs[ins[8:6]], b = regs[ins[5:3]];
  integer k;
  function [15:0] rom(input [7:0] at);
    case (at)
      0: rom = {4'd1, 3'd1, 9'd1};
      1: rom = {4'd1, 3'd2, 9'd3};
      2: rom = {4'd2, 3'd3, 3'd1, 3'd2, 3'd0};
      3: rom = {4'd3, 3'd4, 3'd3, 3'd2, 3'd0};
      4: rom = {4'd4, 3'd1, 3'd4, 3'd3, 3'd0};
      5: rom = {4'd5, 3'd0, 3'd1, 3'd3, 3'd0};
      6: rom = {4'd6, 3'd5, 3'd3, 3'd0, 3'd0};
      7: rom = {4'd2, 3'd2, 3'd2, 3'd5, 3'd0};
      default: rom = {4'd7, 12'd2};
    endcase
  endfunction
  always @(posedge clk)
    if (rst) begin pc <= 0; out <= 0; for (k = 0; k < 8; k = k + 1) regs[k] <= k; end
    else begin
      pc <= pc + 1;
      case (ins[15:12])
        1: regs[ins[11:9]] <= ins[8:0];
        2: regs[ins[11:9]] <= a + b;
        3: regs[ins[11:9]] <= a * b;
        4: regs[ins[11:9]] <= a ^ {b[7:0], b[15:8]};
        5: mem[a[7:0]] <= b;
        6: regs[ins[11:9]] <= mem[a[7:0]];
        7: pc <= ins[7:0];
        default: ;
      endcase
      out <= regs[4];
    end
endmodule
